"""The shapes of a model's inputs: what the file says, with its open dimensions bound by the user's `dims`.

Holds true: what is open and stays open is named all at once, with the `dims=` that would close it; so is a key of
`dims` that binds nothing. A shape given for one input also binds its symbolic names everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ValueInfoProto

from memopt.errors import LoadError, OptionError
from memopt.frontends.onnx_tensor import MAX_RANK, dtype_name, element_dtype
from memopt.frontends.problems import Problems, shown
from memopt.types import TensorType

__all__ = ["feed_types"]

_Dims = Mapping[str, "int | Sequence[int]"]
#: Names that are none: Paddle writes "?" for each axis of which it knows nothing, equal or not.
_NAMELESS = ("", "?")


@dataclass(slots=True)
class _Feed:
    """An input: each dim is a size, a symbolic name, or None (the file says nothing); no dims if its rank is open."""

    name: str
    dtype: str
    dims: list[int | str | None] | None


def feed_types(graph: GraphProto, dims: _Dims, source: str, problems: Problems) -> dict[str, TensorType]:
    """Input name -> type, for the inputs that are no initialisers; inputs of unsupported kinds go to `problems`.

    Raises `LoadError` if dimensions stay open and `OptionError` if `dims` does not fit.
    """
    weights = {tensor.name for tensor in graph.initializer}
    feeds = [feed for value in graph.input if value.name not in weights and (feed := _feed(value, problems))]
    keys = _Keys(feeds)
    for key, value in dims.items():
        keys.bind(key, value, source)
    open_feeds = [feed for feed in feeds if keys.resolve(feed) is None]
    if open_feeds and not problems.unsupported:
        raise LoadError(_open_message(open_feeds, keys, source))
    return {feed.name: TensorType(tuple(keys.resolve(feed) or ()), feed.dtype) for feed in feeds}


def _feed(value: ValueInfoProto, problems: Problems) -> _Feed | None:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        problems.unsupported_op(
            "input", value.name, f"its type is {(kind or 'missing').removesuffix('_type')}, not tensor"
        )
        return None
    tensor = value.type.tensor_type
    dtype = element_dtype(tensor.elem_type)
    if dtype is None:
        problems.unsupported_op("input", value.name, f"its element type is {dtype_name(tensor.elem_type)}")
        return None
    if not tensor.HasField("shape"):
        return _Feed(value.name, dtype, None)
    if len(tensor.shape.dim) > MAX_RANK:
        problems.fault(
            "input", value.name, f"it has {len(tensor.shape.dim)} dimensions; at most {MAX_RANK} are sensible"
        )
        return None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(None if dim.dim_param in _NAMELESS else dim.dim_param)
    return _Feed(value.name, dtype, dims)


class _Keys:
    """What the user bound: symbolic names, whole shapes, single axes."""

    def __init__(self, feeds: Sequence[_Feed]) -> None:
        self.feeds = {feed.name: feed for feed in feeds}
        self.symbols = {dim for feed in feeds for dim in feed.dims or () if isinstance(dim, str)}
        self.sizes: dict[str, int] = {}
        self.axes: dict[tuple[str, int], int] = {}
        self.ranks: dict[str, int] = {}

    def bind(self, key: str, value: int | Sequence[int], source: str) -> None:
        size = _size(value)
        if size is not None:
            self._bind_size(key, size, source)
            return
        found = [_size(item) for item in value] if isinstance(value, (Sequence, np.ndarray)) else [None]
        if None in found or isinstance(value, str):
            raise OptionError(f"dims has {key}={value!r}; want a size of 0 or more, or a shape of such sizes")
        if key not in self.feeds:
            self._unknown(key, value, source)
        shape, feed = tuple(item for item in found if item is not None), self.feeds[key]
        if feed.dims is not None and len(shape) != len(feed.dims):
            raise OptionError(
                f"dims has {key}={shape}, but that input has {len(feed.dims)} dimensions: {_text(feed.dims)}"
            )
        self.ranks[key] = len(shape)
        for index, item in enumerate(shape):
            self._bind_axis(key, index, item)

    def _bind_size(self, key: str, size: int, source: str) -> None:
        axis = self._axis(key)
        if key in self.symbols:
            self._symbol(key, size)
        elif axis is not None:
            self._bind_axis(*axis, size)
        else:
            self._unknown(key, size, source)

    def _axis(self, key: str) -> tuple[str, int] | None:
        name, dot, axis = key.rpartition(".")
        if not dot or name not in self.feeds or not axis.isascii() or not axis.isdigit():
            return None
        dims = self.feeds[name].dims
        return (name, int(axis)) if dims is not None and int(axis) < len(dims) else None

    def _symbol(self, symbol: str, size: int) -> None:
        if self.sizes.setdefault(symbol, size) != size:
            raise OptionError(f"dims binds {symbol!r} to {self.sizes[symbol]} and to {size}")

    def _bind_axis(self, name: str, axis: int, size: int) -> None:
        dims = self.feeds[name].dims
        have = None if dims is None else dims[axis]
        if isinstance(have, int) and have != size:
            raise OptionError(f"dims makes axis {axis} of input {name!r} {size}, but the file says {have}")
        if isinstance(have, str):
            self._symbol(have, size)
        if self.axes.setdefault((name, axis), size) != size:
            raise OptionError(f"dims binds axis {axis} of input {name!r} to {self.axes[name, axis]} and to {size}")

    def _unknown(self, key: str, value: object, source: str) -> None:
        symbols = ", ".join(sorted(self.symbols)) or "none"
        inputs = ", ".join(f"{feed.name} {_text(feed.dims)}" for feed in self.feeds.values()) or "none"
        raise OptionError(
            f"dims has {key}={value!r}, which {source} does not know; open names: {symbols}; inputs: {inputs}"
        )

    def resolve(self, feed: _Feed) -> list[int] | None:
        """The shape of `feed`, or None while something in it is open."""
        if feed.dims is None:
            rank = self.ranks.get(feed.name)
            return None if rank is None else [self.axes[feed.name, axis] for axis in range(rank)]
        shape = [self.size(feed.name, axis, dim) for axis, dim in enumerate(feed.dims)]
        return None if None in shape else [size for size in shape if size is not None]

    def size(self, name: str, axis: int, dim: int | str | None) -> int | None:
        if isinstance(dim, int):
            return dim
        if isinstance(dim, str):
            return self.sizes.get(dim)
        return self.axes.get((name, axis))


def _size(value: object) -> int | None:
    """`value` as a size, or None if it is none."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        return None
    return int(value)


def _text(dims: Sequence[int | str | None] | None) -> str:
    if dims is None:
        return "[rank unknown]"
    return f"[{', '.join('?' if dim is None else shown(dim, 40) for dim in dims)}]"


def _open_message(feeds: Sequence[_Feed], keys: _Keys, source: str) -> str:
    wanted: dict[str, str] = {}
    for feed in feeds:
        if feed.dims is None:
            wanted[feed.name] = "(1, …)"
            continue
        for axis, dim in enumerate(feed.dims):
            if keys.size(feed.name, axis, dim) is None:
                wanted[dim if isinstance(dim, str) else f"{feed.name}.{axis}"] = "1"
    inputs = ", ".join(f"{shown(feed.name)} {_text(feed.dims)}" for feed in feeds)
    example = ", ".join(f'"{shown(key)}": {value}' for key, value in wanted.items())
    return (
        f"{source} leaves dimensions open, and memopt plans static shapes only. "
        f"Open: {inputs}. Give sizes, such as dims={{{example}}}"
    )
