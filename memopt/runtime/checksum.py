"""A checksum of an array's bytes that depends on their order, at the speed of memory. Not for adversaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["checksum"]

_PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses nothing


@njit(nogil=True, cache=True)
def _mix(words, prime):  # type: ignore[no-untyped-def]
    """Four sums at once, word `i` into number `i % 4`: `sum = (sum ^ word) * prime`, modulo 2**64."""
    a, b, c, d = prime, prime ^ np.uint64(1), prime ^ np.uint64(2), prime ^ np.uint64(3)
    whole = len(words) - len(words) % 4
    for i in range(0, whole, 4):
        a = (a ^ np.uint64(words[i])) * prime
        b = (b ^ np.uint64(words[i + 1])) * prime
        c = (c ^ np.uint64(words[i + 2])) * prime
        d = (d ^ np.uint64(words[i + 3])) * prime
    for i in range(whole, len(words)):
        a = (a ^ np.uint64(words[i])) * prime
    for other in (b, c, d):
        a = ((a ^ (a >> np.uint64(29))) ^ other) * prime
    return a ^ (a >> np.uint64(32))


def checksum(array: NDArray[Any]) -> int:
    """A number of 64 bits for the bytes of a C-contiguous `array`."""
    data = array.reshape(-1).view(np.uint8)
    wide = next((kind for kind in (np.uint64, np.uint32) if _fits(data, np.dtype(kind).itemsize)), np.uint8)
    return int(_mix(data.view(wide), _PRIME))


def _fits(data: NDArray[np.uint8], size: int) -> bool:
    return data.size % size == 0 and data.ctypes.data % size == 0
