"""Tensor types: a static shape and a dtype. Sizes are exact Python integers and never wrap.

Holds true: every dimension is a non-negative `int`; a scalar has shape `()` and one element; a zero-size tensor has
zero bytes. A shape in which a dimension is unknown is not a `TensorType`: memopt plans static shapes only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NewType

import numpy as np

from memopt.errors import OptionError

__all__ = ["DTYPES", "Bytes", "Offset", "Step", "TensorType", "as_dtype", "format_bytes", "itemsize"]

Step = NewType("Step", int)
Offset = NewType("Offset", int)
Bytes = NewType("Bytes", int)

#: dtype name -> the short form of the text format.
DTYPES: dict[str, str] = {
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "b8",
}
_ITEMSIZE = {name: np.dtype(name).itemsize for name in DTYPES}


def as_dtype(dtype: Any) -> str:
    """The canonical name of `dtype` (a name, a short form such as `f32`, or anything NumPy takes)."""
    if isinstance(dtype, str):
        for name, short in DTYPES.items():
            if dtype in (name, short):
                return name
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    return name


def itemsize(dtype: str) -> int:
    """Bytes of one element of `dtype`."""
    return _ITEMSIZE[dtype]


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` for people: `512 B`, `3.06 MiB`."""
    size = float(num_bytes)
    if abs(size) < 1024:
        return f"{num_bytes} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.2f} {unit}"
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static shape (outermost dimension first, logical NCHW for images) and a dtype name."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            object.__setattr__(self, "dtype", as_dtype(self.dtype))
        for dim in self.shape:
            if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
                raise OptionError(f"shape {self.shape!r} has the dimension {dim!r}; want integers of 0 or more")

    @staticmethod
    def of(shape: Sequence[int], dtype: Any = "float32") -> TensorType:
        """A type from any sequence of integers and any dtype spelling."""
        return TensorType(tuple(int(dim) for dim in shape), as_dtype(dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous tensor of this type."""
        return self.num_elements * _ITEMSIZE[self.dtype]

    def with_dtype(self, dtype: str) -> TensorType:
        return self if dtype == self.dtype else TensorType(self.shape, dtype)

    def with_shape(self, shape: Sequence[int]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def __str__(self) -> str:
        return f"{DTYPES[self.dtype]}[{','.join(map(str, self.shape))}]"
