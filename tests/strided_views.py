"""Strided views: hypothesis draws them, and `run_strided` gives them to a kernel as a plan does, each as one flat array
from its first element to its last, between guards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from memopt.ops import KernelCall, KernelQuery, get_op
from memopt.runtime.entry import run_kernel
from memopt.strides import Strides, canonical, extent
from memopt.types import TensorType
from tests.kernels.checks import plain_kernel

__all__ = ["query_of", "run_strided", "steps_of", "views"]

Array = np.ndarray[Any, Any]

_GUARD = 64
_POISON = 0xFF  # as a float of any width: NaN


def steps_of(view: Array) -> Strides | None:
    """The view's canonical strides, in elements."""
    return canonical(view.shape, tuple(step // view.itemsize for step in view.strides))


@st.composite
def views(draw: st.DrawFn, shape: Sequence[int], dtype: str = "float32") -> Array:
    """A view of `shape`: its axes lie in storage in any order, each whole, cut out of a longer one, with every other
    element, or repeated. Its elements are whole numbers from -4 to 4, of which float32 sums are exact.
    """
    rank = len(shape)
    order = draw(st.one_of(st.just(list(range(rank))), st.permutations(range(rank))))
    lengths, picks = [], []
    for axis in order:
        size = shape[axis]
        whole, cut, other, repeated = (size, 0, 1), (size + 3, 2, 1), (2 * size + 1, 1, 2), (1, 0, 1)
        length, start, step = draw(st.sampled_from((whole, whole, whole, cut, other, repeated)))
        lengths.append(length)
        picks.append(slice(start, min(start + size * step, length), step))
    numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(-4, 5, lengths).astype(dtype)
    return np.broadcast_to(numbers[tuple(picks)].transpose(np.argsort(order)), shape)


def query_of(op: str, arrays: Sequence[Array | None], attrs: Mapping[str, Any], outputs: int = 1) -> KernelQuery:
    """The query for these views, strides included."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = tuple(None if a is None else TensorType.of(a.shape, a.dtype) for a in arrays)
    strides = tuple(None if a is None else steps_of(a) for a in arrays)
    return KernelQuery(types, tuple(spec.infer(types, full, outputs)), full, strides=strides)


def run_strided(
    op: str,
    arrays: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    plain: bool = False,
) -> list[Array] | None:
    """The kernel's outputs, or None where there is no kernel for these strides.

    `plain`: as plain Python; so is that of contiguous inputs, which other tests compile.
    """
    query = query_of(op, arrays, attrs or {}, outputs)
    call = get_op(op).kernel_for(query)
    if call is None:
        return None
    inputs = [_stored(np.zeros(0) if a is None else a) for a in arrays]
    before = [buffer.copy() for buffer in inputs]
    written = [_guarded(np.full(t.nbytes, _POISON, np.uint8)) for t in query.outputs if t is not None]
    buffers = {"in": inputs, "out": written}
    for arg in call.arrays:
        array = arrays[arg.index] if arg.role == "in" else None
        if array is not None:
            assert int(np.prod(arg.shape)) == extent(array.shape, steps_of(array))
    plain = plain or all(strides is None for strides in query.strides)
    _run(call, [buffers[arg.role][arg.index] for arg in call.arrays], plain)
    for buffer, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(buffer, old, err_msg=f"{call.kernel} wrote an input")
    for buffer in written:
        assert (buffer[-_GUARD:] == _POISON).all(), f"{call.kernel} wrote past an output"
    return [buffer[: t.nbytes].view(t.dtype).reshape(t.shape) for buffer, t in zip(written, query.outputs, strict=True)]


def _stored(view: Array) -> Array:
    """The bytes from the view's first element to its last, and a guard."""
    count = extent(view.shape, steps_of(view))
    flat = np.lib.stride_tricks.as_strided(view, (count,), (view.itemsize,)) if view.size else view.reshape(-1)
    return _guarded(np.frombuffer(flat.tobytes(), np.uint8))


def _guarded(data: Array) -> Array:
    return np.concatenate([data, np.full(_GUARD, _POISON, np.uint8)])


def _run(call: KernelCall, buffers: Sequence[Array], plain: bool) -> None:
    if not plain:
        assert run_kernel(call, buffers) == 0
        return
    sizes = [int(np.prod(arg.shape)) * np.dtype(arg.dtype).itemsize for arg in call.arrays]
    places = [
        buffer[:size].view(arg.dtype).reshape(arg.shape)
        for buffer, size, arg in zip(buffers, sizes, call.arrays, strict=True)
    ]
    with np.errstate(all="ignore"):
        assert plain_kernel(call)(*places, *call.scalars) == 0
