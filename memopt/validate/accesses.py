"""Who must come before whom, for the sake of one space's bytes? A map from byte ranges to what was done to them.

Of each byte it knows, at an instruction of the listing, its *content*: the writers that wrote it (one, or several that
wrote the same bits one after the other), who has read it since, and what was there before. Content that somebody reads
is *needed*. Three rules say which paths are asked for:

1. from each reader of the last needed content to each writer after it;
2. from the writers of the last needed content, and from writers since whose bytes nobody read, to each writer of the
   next needed content (known only when that is read first);
3. a reader comes after the last writer (that is an edge, for the bytes are the value's way).

To ask for more is always right, and done where rows are long: of more than `_ROW` writers in a row that are alike or
write what nobody reads, one in `_ROW` counts as if it read what it wrote. So each reading is named some `_ROW` times.

Holds true: `_starts` is sorted and has exactly the keys of `_pieces`; pieces are non-empty and apart. Pieces with one
history become one when they are written, so that few are touched: O(log n + pieces touched) and one list insertion an
access, and one step for each path that is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from typing import NamedTuple

__all__ = ["AccessMap", "Need"]

#: How many writers in a row are asked to come after the same readers.
_ROW = 32


class Need(NamedTuple):
    """A path must lead from instruction `first`, which read (or wrote, if `wrote`) bytes `[lo, hi)`, to `second`, which
    writes them.
    """

    first: int
    second: int
    wrote: bool
    lo: int
    hi: int


class _Chain(NamedTuple):
    """Instructions, the latest first: a list that grows at its head, so that pieces which were one share what they have
    in common.
    """

    last: int
    others: _Chain | None


class _Piece(NamedTuple):
    """Bytes up to `hi` hold what `writers` wrote, all of them the same bits by what they say (`like`; None: like no
    other), `epoch` first (None: it was there at the start). `readers` read it. `past_readers` must come before, and
    `past_writers` if this content is needed; `row` writers were told so far.
    """

    hi: int
    epoch: int | None = None
    like: Hashable = None
    writers: _Chain | None = None
    readers: _Chain | None = None
    past_readers: _Chain | None = None
    past_writers: _Chain | None = None
    row: int = 0

    def has_history_of(self, other: _Piece) -> bool:
        return all(mine is others for mine, others in zip(self[1:], other[1:], strict=True))


class AccessMap:
    """What was done to each byte of a space, and the paths that follow from it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, _Piece] = {}
        self._chains: dict[tuple[int, int], _Chain] = {}  # equal chains are one

    def read(self, lo: int, hi: int, index: int) -> tuple[list[int], list[Need]]:
        """Instruction `index` reads `[lo, hi)`: the last writers of its bytes, and the paths that are asked for since
        it does.
        """
        writers: dict[int, None] = {}
        needs: list[Need] = []
        named: set[tuple[int, int]] = set()
        for start in self._cover(lo, hi):
            piece = self._pieces[start]
            if piece.writers is not None:
                writers[piece.writers.last] = None
            if piece.readers is None:
                for writer in _each(piece.writers):
                    needs += _needs(piece.past_writers, writer, True, (start, piece.hi), named)
            if piece.readers is None or piece.readers.last != index:
                self._pieces[start] = piece._replace(readers=self._chain(index, piece.readers))
        return list(writers), needs

    def write(self, lo: int, hi: int, index: int, like: Hashable = None) -> list[Need]:
        """Instruction `index` writes `[lo, hi)`: the paths that are asked for, whether or not somebody reads it.

        Two writes of a byte that say the same `like`, which is not None, write the same bits there.
        """
        needs: list[Need] = []
        named: set[tuple[int, int]] = set()
        new: list[tuple[int, _Piece]] = []
        for start in self._cover(lo, hi):
            old = self._pieces[start]
            span = (start, old.hi)
            if old.row >= _ROW and old.readers is None:  # enough: count it as needed
                for writer in _each(old.writers):
                    needs += _needs(old.past_writers, writer, True, span, named)
                    old = old._replace(readers=self._chain(writer, old.readers))
            piece = self._written(old, index, like)
            needs += _needs(piece.past_readers, index, False, span, named)
            if piece.readers is not None:
                needs += _needs(piece.past_writers, index, True, span, named)
            if new and new[-1][1].has_history_of(piece):
                new[-1] = (new[-1][0], piece)
            else:
                new.append((start, piece))
        first, last = bisect_left(self._starts, lo), bisect_left(self._starts, hi)
        for start in self._starts[first:last]:
            del self._pieces[start]
        self._starts[first:last] = [start for start, _ in new]
        self._pieces.update(new)
        return needs

    def epochs(self, lo: int, hi: int) -> tuple[tuple[int, int | None], ...]:
        """Where in `[lo, hi)` each content begins, and its first writer: while that is the same, so are the bits."""
        found: list[tuple[int, int | None]] = []
        for start in self._cover(lo, hi):
            epoch = self._pieces[start].epoch
            if not found or found[-1][1] != epoch:
                found.append((start, epoch))
        return tuple(found)

    def _written(self, piece: _Piece, index: int, like: Hashable) -> _Piece:
        """The piece after instruction `index` wrote all of it."""
        if like is not None and like == piece.like and piece.row < _ROW:
            return piece._replace(writers=self._chain(index, piece.writers), row=piece.row + 1)
        wrote = self._chain(index, None)
        if piece.readers is not None:
            return _Piece(piece.hi, index, like, wrote, None, piece.readers, piece.writers, 1)
        past = piece.past_writers  # nobody needs what was there: who comes next must mind what was there before that
        for writer in _each(piece.writers):
            past = self._chain(writer, past)
        return _Piece(piece.hi, index, like, wrote, None, piece.past_readers, past, piece.row + 1)

    def _chain(self, last: int, others: _Chain | None) -> _Chain:
        return self._chains.setdefault((last, id(others)), _Chain(last, others))

    def _cover(self, lo: int, hi: int) -> list[int]:
        """Let pieces start at `lo` and `hi`, and none be missing between; returns their starts."""
        if lo >= hi:
            return []
        self._cut(lo)
        self._cut(hi)
        first, last = bisect_left(self._starts, lo), bisect_left(self._starts, hi)
        covered: list[int] = []
        at = lo
        for start in (*self._starts[first:last], hi):
            if at < start:  # nobody touched this yet
                covered.append(at)
                self._pieces[at] = _Piece(start)
            if start < hi:
                covered.append(start)
                at = self._pieces[start].hi
        if len(covered) != last - first:
            self._starts[first:last] = covered
        return covered

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


def _each(chain: _Chain | None) -> Iterator[int]:
    while chain is not None:
        yield chain.last
        chain = chain.others


def _needs(
    chain: _Chain | None, second: int, wrote: bool, span: tuple[int, int], named: set[tuple[int, int]]
) -> Iterator[Need]:
    """From each of the chain to `second`, but for what is in `named`, which gets there: pieces that were one share
    chains."""
    while chain is not None and (id(chain), second) not in named:
        named.add((id(chain), second))
        if chain.last != second:
            yield Need(chain.last, second, wrote, *span)
        chain = chain.others
