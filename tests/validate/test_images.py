"""What the graph says of values: relatives are true of every element, whatever views they come through."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.ir import Graph, GraphBuilder, Value
from memopt.strides import canonical, extent, row_strides
from memopt.types import itemsize
from memopt.validate.images import _MOST_RELATIVES, Images
from memopt.validate.spaces import NCHW, Image


def random_views(rng: random.Random, count: int = 8) -> Graph:
    """Views of views of a feed, joins and copies among them; axes of length 1 and 0 too."""
    b = GraphBuilder()
    pool = [b.input("x", rng.choice([(4, 6), (2, 3, 4), (1, 4, 1, 6), (6, 1), (2, 2, 2, 3)]))]
    for i in range(count):
        value, options = rng.choice(pool[-4:]), {"name": f"n{i}"}
        pool += _made(b, value, rng, options)
    b.output(*[v for v in pool if v.producer is not None and not v.uses] or [b.neg(pool[0])])
    return b.build()


def _made(b: GraphBuilder, value: Value, rng: random.Random, options: dict) -> list[Value]:
    rank = len(value.shape)
    axis = rng.randrange(rank) if rank else 0
    match rng.choice(["transpose", "transpose", "slice", "slice", "split", "reshape", "expand", "neg", "concat"]):
        case "transpose" if rank:
            return [b.op("Transpose", value, perm=tuple(rng.sample(range(rank), rank)), **options)]
        case "slice" if rank:
            start, step = rng.randint(0, 2), rng.choice([1, 1, 2, 3, -1])
            ends = (rng.randint(0, 6),) if step > 0 else (-9,)
            return [b.op("Slice", value, starts=(start,), ends=ends, axes=(axis,), steps=(step,), **options)]
        case "split" if rank:
            first = rng.randint(0, value.shape[axis])
            return list(b.op("Split", value, outputs=2, axis=axis, split=(first, value.shape[axis] - first), **options))
        case "reshape" if value.type.num_elements:
            dims = [value.type.num_elements]
            for _ in range(rng.randint(0, 3)):
                last = dims.pop()
                by = rng.choice([n for n in range(1, last + 1) if last % n == 0])
                dims += [by, last // by]
            return [b.reshape(value, shape=tuple(dims), **options)]
        case "expand" if value.type.num_elements < 60:
            shape = tuple(rng.choice([2, 3]) if dim == 1 else dim for dim in value.shape)
            return [b.op("Expand", value, shape=(rng.choice([1, 2]), *shape), **options)]
        case "neg":
            return [b.neg(value, **options)]
        case "concat" if rank:
            return [b.concat(value, value, axis=axis, **options)]
    return []


def evaluate(graph: Graph) -> dict[Value, np.ndarray]:
    """All values; the elements of the feed are apart from each other."""
    values: dict[Value, np.ndarray] = {}
    for feed in graph.inputs:
        values[feed] = np.arange(1, feed.type.num_elements + 1, dtype=feed.dtype).reshape(feed.shape)
    for node in graph.nodes:
        arrays = [None if value is None else values[value] for value in node.inputs]
        types = [value.type for value in node.outputs]
        values.update(zip(node.outputs, node.spec.reference(arrays, node.attrs, types), strict=True))
    return values


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_a_relative_holds_every_element_where_it_says(seed):
    graph = random_views(random.Random(seed))
    images, values = Images(graph), evaluate(graph)
    for value, relatives in images._relatives.items():
        assert len(relatives) <= _MOST_RELATIVES
        for root, first, strides in relatives:
            steps = row_strides(value.shape) if strides is None else strides
            for index in np.ndindex(value.shape):
                at = first + sum(i * step for i, step in zip(index, steps, strict=True))
                assert values[root].ravel()[at] == values[value][index]
            assert images.root(root) is root


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_the_pieces_of_an_image_hold_the_value(seed):
    """In every stored dtype; joins looked into."""
    graph = random_views(random.Random(seed))
    images, values = Images(graph), evaluate(graph)
    for value in graph.values:
        for dtype in ("float32", "float64"):
            found = [np.zeros(0, value.dtype)]
            for lo, hi, image in images.images(value, dtype, "NCHW"):
                assert image.layout == NCHW
                first = image.at // itemsize(dtype)
                found.append(values[image.root].ravel()[first : first + (hi - lo) // itemsize(dtype)])
            assert np.array_equal(np.concatenate(found), values[value].ravel())


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_rows_hold_the_value_in_strides(seed):
    """Each of them, of any relative: bytes that are what the pieces say hold the value's elements, and no others."""
    rng = random.Random(seed)
    graph = random_views(rng)
    images, values = Images(graph), evaluate(graph)
    for value in graph.values:
        steps = random_strides(rng, value.shape)
        starts = {sum(np.multiply(index, steps)) for index in np.ndindex(value.shape)}
        for pieces in images.rows(value, "float64", steps):
            memory = np.zeros(extent(value.shape, steps), value.dtype)  # no element is 0
            for lo, hi, image in pieces:
                assert lo % 8 == hi % 8 == image.at % 8 == 0
                assert image.layout == NCHW
                assert not memory[lo // 8 : hi // 8].any()
                memory[lo // 8 : hi // 8] = values[image.root].ravel()[image.at // 8 :][: (hi - lo) // 8]
            there = [memory[sum(np.multiply(index, steps))] for index in np.ndindex(value.shape)]
            assert np.array_equal(there, values[value].ravel())
            assert set(np.flatnonzero(memory)) == starts
        if len(starts) == value.type.num_elements:
            assert next(images.rows(value, "float64", steps), None) is not None


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_what_is_alike_is_equal(seed):
    """Pieces that meet, as roots and as runs of other values."""
    rng = random.Random(seed)
    graph = random_views(rng)
    images, values = Images(graph), evaluate(graph)
    for value, other in itertools.product(graph.values, repeat=2):
        if value.type.num_elements and other.type.num_elements and value.dtype == other.dtype:
            (first, last), start = random_run(rng, value), rng.randint(0, 3)
            (low, high), shift = random_run(rng, other), rng.randint(0, 3)
            one = 4 * start, 4 * (start + last - first), Image(images.root(value), "float32", NCHW, 4 * first)
            two = 4 * shift, 4 * (shift + high - low), Image(images.root(other), "float32", NCHW, 4 * low)
            if images.alike(one, two):
                mine, theirs = values[one[2].root].ravel(), values[two[2].root].ravel()
                for at in range(max(start, shift), min(start + last - first, shift + high - low)):
                    assert mine[first + at - start] == theirs[low + at - shift]


def random_run(rng: random.Random, value: Value) -> tuple[int, int]:
    first = rng.randrange(value.type.num_elements)
    return first, rng.randint(first + 1, value.type.num_elements)


def test_views_of_one_value_are_alike_where_they_meet():
    b = GraphBuilder()
    x = b.input("x", (3, 4))
    left, right = b.op("Split", x, outputs=2, axis=1, split=(2, 2), name="s")
    middle = b.op("Slice", x, starts=(1,), ends=(3,), axes=(1,), name="m")
    turned = b.op("Transpose", right, name="t")
    b.output(left, right, middle, turned)
    images = Images(b.build())

    def piece(value: Value, lo: int, hi: int, at: int) -> tuple[int, int, Image]:
        return lo, hi, Image(value, "float32", NCHW, at)

    assert images.alike(piece(left, 0, 8, 8), piece(x, 0, 8, 16))  # row 1
    assert images.alike(piece(x, 0, 8, 16), piece(left, 0, 8, 8))
    assert not images.alike(piece(left, 0, 12, 8), piece(x, 0, 12, 16))  # goes on in row 2
    assert images.alike(piece(left, 0, 4, 4), piece(middle, 0, 4, 0))
    assert images.alike(piece(left, 0, 8, 0), piece(middle, 4, 12, 0))
    assert not images.alike(piece(left, 0, 4, 0), piece(right, 0, 4, 0))
    assert images.alike(piece(turned, 0, 4, 12), piece(right, 0, 4, 4))
    assert not images.alike(piece(turned, 0, 8, 12), piece(right, 0, 8, 4))


def random_strides(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Mostly such that no two elements meet."""
    steps, step = [0] * len(shape), 1
    for axis in rng.sample(range(len(shape)), len(shape)) if rng.random() < 0.4 else reversed(range(len(shape))):
        steps[axis] = step if rng.random() < 0.95 else rng.randint(0, 3)
        step = step * shape[axis] + rng.choice([0, 0, 0, 1, 5])
    return tuple(steps)


def test_the_first_candidate_is_the_image_of_a_contiguous_value():
    for seed in range(50):
        graph = random_views(random.Random(seed))
        images = Images(graph)
        for value in graph.values:
            rows = row_strides(value.shape)
            assert images.candidates(value, value.dtype, "NCHW")[0] == images.image(value, value.dtype, "NCHW")
            assert images.candidates(value, value.dtype, "NCHW", rows) == images.candidates(value, value.dtype, "NCHW")


def test_a_long_chain_of_slices_keeps_few_relatives():
    b = GraphBuilder()
    value = b.input("x", (4, 64))
    for i in range(40):
        value = b.op("Slice", value, starts=(1,), ends=(99,), axes=(1,), name=f"n{i}")
    b.output(value)
    graph = b.build()
    images = Images(graph)
    (own, *others) = images._relatives[value]
    assert (own.root, len(others)) == (value, _MOST_RELATIVES - 1)
    assert others[-1] == (graph.inputs[0], 40, canonical(value.shape, (64, 1)))
