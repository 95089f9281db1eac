"""The arithmetic of strides against NumPy's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.strides import Strides, canonical, extent, has_gaps, reshaped, row_strides
from tests.strided_views import steps_of, views

Array = np.ndarray[Any, Any]

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


def seen(flat: Array, shape: tuple[int, ...], strides: Strides | None) -> Array:
    """The elements of `flat` that strides say."""
    steps = row_strides(shape) if strides is None else strides
    return np.lib.stride_tricks.as_strided(flat, shape, [step * flat.itemsize for step in steps])


def places(view: Array) -> Array:
    """Where in storage the view's elements lie, from its first one on."""
    return seen(np.arange(extent(view.shape, steps_of(view))), view.shape, steps_of(view))


@st.composite
def shapes_of(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    shape = []
    while count > 1:
        dim = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        shape.append(dim)
        count //= dim
    return tuple(draw(st.permutations(shape + [1] * draw(st.integers(0, 2)))))


@settings(max_examples=400)
@given(st.data(), SHAPES)
def test_reshaped_is_what_numpy_does_without_a_copy(data: st.DataObject, shape: tuple[int, ...]) -> None:
    view = data.draw(views(shape))
    new = data.draw(shapes_of(view.size))
    found = reshaped(view.shape, steps_of(view) or row_strides(shape), new)
    wanted = view.reshape(new)
    assert (found is not None) == np.shares_memory(wanted, view)
    if found is not None:
        place = places(view)
        np.testing.assert_array_equal(seen(place.base.base, new, found), place.reshape(new))
        assert canonical(new, found) == steps_of(wanted)
        assert all(step == 0 for dim, step in zip(new, found, strict=True) if dim == 1)


@given(st.data(), SHAPES)
def test_reshaped_and_back(data: st.DataObject, shape: tuple[int, ...]) -> None:
    view = data.draw(views(shape))
    new = data.draw(shapes_of(view.size))
    steps = steps_of(view) or row_strides(shape)
    found = reshaped(shape, steps, new)
    if found is not None:
        assert canonical(shape, reshaped(new, found, shape)) == canonical(shape, steps)


@pytest.mark.parametrize(
    ("shape", "strides", "new", "wanted"),
    [
        ((2, 3, 4), (12, 4, 1), (6, 4), (4, 1)),
        ((2, 3, 4), (4, 8, 1), (6, 4), None),
        ((2, 3, 4), (4, 8, 1), (2, 3, 2, 2), (4, 8, 2, 1)),
        ((4, 6), (0, 1), (2, 2, 6), (0, 0, 1)),
        ((4, 6), (0, 1), (24,), None),
        ((4, 6), (0, 0), (24,), (0,)),
        ((4,), (3,), (2, 2), (6, 3)),
        ((1, 4), (0, 3), (4, 1, 1), (3, 0, 0)),
        ((), (), (1, 1), (0, 0)),
        ((0, 3), (5, 1), (3, 0), (0, 1)),
    ],
)
def test_reshaped(shape: tuple[int, ...], strides: Strides, new: tuple[int, ...], wanted: Strides | None) -> None:
    assert reshaped(shape, strides, new) == wanted


@given(st.data(), SHAPES)
def test_canonical_extent_and_gaps(data: st.DataObject, shape: tuple[int, ...]) -> None:
    view = data.draw(views(shape))
    raw = tuple(step // view.itemsize for step in view.strides)
    steps, place = canonical(shape, raw), places(view)
    assert (steps is None) == np.array_equal(place, np.arange(view.size).reshape(shape))
    assert canonical(shape, steps) == steps
    assert steps is None or all(step == 0 for dim, step in zip(shape, steps, strict=True) if dim == 1)
    assert extent(shape, steps) == extent(shape, raw) == place.max() + 1
    assert has_gaps(shape, steps) == (len(np.unique(place)) != place.max() + 1)


def test_of_no_elements() -> None:
    assert canonical((2, 0), (7, 3)) is None
    assert extent((2, 0), (7, 3)) == 0
    assert row_strides((2, 0, 3)) == (0, 3, 1)
    assert row_strides(()) == ()
    assert (canonical((), ()), extent((), ()), has_gaps((), None)) == (None, math.prod(()), False)
