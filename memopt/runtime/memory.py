"""Regions: the allocations in which a plan's slots lie, one for each (device, space).

Holds true: the base of an allocated region is aligned to a page for arenas, to 64 bytes otherwise; such regions never
overlap, and only the executor that made them writes to them. A borrowed region is an array of somebody else's.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import ExecutionError

__all__ = ["Region", "allocate", "borrow", "touched_bytes"]

_ALIGNMENT = 64
_SWAPPED_BIT = 62


@dataclass(slots=True)
class Region:
    """`data` is its bytes (uint8), `address` that of the first; `owner` keeps what lies under them alive."""

    data: NDArray[np.uint8]
    address: int
    owner: Any = field(repr=False, default=None)

    def address_of(self, offset: int, size: int, what: str) -> int:
        """The address of bytes [offset, offset + size); raises `ExecutionError`, naming `what`, if they are not all
        here.
        """
        if offset < 0 or offset + size > self.data.size:
            end = offset + size
            raise ExecutionError(f"{what}: bytes [{offset}, {end}) lie outside of a region of {self.data.size} bytes")
        return self.address + offset

    def view(self, offset: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """The bytes from `offset` on as an array that shares them; raises `ExecutionError` if they are not all here."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        self.address_of(offset, size, f"an array {dtype}{list(shape)}")
        return self.data[offset : offset + size].view(kind).reshape(shape)


def allocate(size: int, *, pages: bool = False) -> Region:
    """A region of `size` zeroed bytes; with `pages`, an anonymous mapping whose untouched pages cost nothing.

    Raises `ExecutionError` where the system has no room for it.
    """
    try:
        if pages and size:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            data = np.frombuffer(mapping, np.uint8, size)
            return Region(data, data.ctypes.data, mapping)
        raw = np.zeros(size + _ALIGNMENT, np.uint8)
    except (OSError, OverflowError, ValueError, MemoryError):
        raise ExecutionError(f"the system has no room for a region of {size} bytes") from None
    skip = -raw.ctypes.data % _ALIGNMENT
    data = raw[skip : skip + size]
    return Region(data, raw.ctypes.data + skip, raw)


def borrow(array: NDArray[Any]) -> Region:
    """The bytes of a contiguous array, without a copy (read-only, if the array is)."""
    data = np.frombuffer(array.reshape(-1), np.uint8) if array.size else np.zeros(0, np.uint8)
    return Region(data, array.ctypes.data, array)


def touched_bytes(region: Region) -> int | None:
    """Bytes of the region's pages that are in use (whole pages); None where the system does not tell.

    Asks for each page: the system merges neighbouring mappings, so what it says of a mapping is not about the region.
    """
    if not isinstance(region.owner, mmap.mmap):
        return None
    page = mmap.PAGESIZE
    first, last = region.address // page, (region.address + len(region.data) - 1) // page
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as entries:
            entries.seek(8 * first)
            words = np.frombuffer(entries.read(8 * (last - first + 1)), np.uint64)
    except OSError:
        return None
    if len(words) != last - first + 1:
        return None
    in_use = words >> np.uint64(_SWAPPED_BIT)  # bit 62: swapped, bit 63: present (Documentation/admin-guide/mm/pagemap)
    return int(np.count_nonzero(in_use)) * page
