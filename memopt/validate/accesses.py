"""Who wrote each byte of a space last, and who has read it since? A map from byte ranges to instructions.

Holds true: `_starts` is sorted and has exactly the keys of `_pieces`; pieces are non-empty and apart. What a write
covers becomes one piece, so that the pieces that are ever touched are few in all: O(log n + pieces touched) and one
list insertion an access.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

__all__ = ["AccessMap"]


class _Readers(NamedTuple):
    """A list that grows at its head, so that pieces which were one share what they have in common."""

    last: int
    others: _Readers | None


class _Piece(NamedTuple):
    hi: int
    writer: int | None
    readers: _Readers | None


class AccessMap:
    """The last writer of each byte (None: it was there at the start), and its readers since."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, _Piece] = {}

    def read(self, lo: int, hi: int, index: int) -> list[int | None]:
        """Instruction `index` reads `[lo, hi)`: who wrote its pieces?"""
        if lo >= hi:
            return []
        self._cut(lo)
        self._cut(hi)
        writers: list[int | None] = []
        at, number = lo, bisect_left(self._starts, lo)
        while at < hi:
            start = self._starts[number] if number < len(self._starts) else hi
            if start > at:  # nobody touched this yet
                end = min(start, hi)
                self._starts.insert(number, at)
                self._pieces[at] = _Piece(end, None, None)
            piece = self._pieces[at]
            writers.append(piece.writer)
            if piece.readers is None or piece.readers.last != index:
                self._pieces[at] = piece._replace(readers=_Readers(index, piece.readers))
            at, number = piece.hi, number + 1
        return writers

    def write(self, lo: int, hi: int, index: int) -> list[tuple[int, int, int | None, list[int]]]:
        """Instruction `index` writes `[lo, hi)`: of each piece, its bytes, its last writer, and its readers since."""
        if lo >= hi:
            return []
        self._cut(lo)
        self._cut(hi)
        first, last = bisect_left(self._starts, lo), bisect_left(self._starts, hi)
        old = [(start, self._pieces.pop(start)) for start in self._starts[first:last]]
        self._starts[first:last] = [lo]
        self._pieces[lo] = _Piece(hi, index, None)
        seen: set[int] = set()  # pieces that were one share readers: each is named once
        return [(start, piece.hi, piece.writer, _each(piece.readers, seen)) for start, piece in old]

    def _cut(self, at: int) -> None:
        """Let a piece start at `at`, if one lies across it."""
        number = bisect_left(self._starts, at)
        if not number or (number < len(self._starts) and self._starts[number] == at):
            return
        start = self._starts[number - 1]
        piece = self._pieces[start]
        if piece.hi > at:
            self._pieces[start] = piece._replace(hi=at)
            self._pieces[at] = piece
            self._starts.insert(number, at)


def _each(readers: _Readers | None, seen: set[int]) -> list[int]:
    """The readers that are not in `seen`, which get there."""
    found = []
    while readers is not None and id(readers) not in seen:
        seen.add(id(readers))
        found.append(readers.last)
        readers = readers.others
    return found
