"""Which content does each byte of a space hold? A map from byte ranges to contents.

Holds true of a `ByteMap`: `_starts` is sorted and has exactly the keys of `_pieces`; pieces are non-empty and apart.
One read or write costs O(log n + pieces touched) plus one list insertion; the common case (an earlier write's range) is
one dict access.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from memopt.ir import Value

__all__ = [
    "NCHW",
    "ByteMap",
    "Content",
    "Image",
    "Layout",
    "Piece",
    "Pieces",
    "Place",
    "Span",
    "apart",
    "is_same",
    "meets",
    "within",
]

#: How elements follow each other: () in logical order; (first element, *shape): those of this tensor, in NHWC order.
Layout = tuple[int, ...]
NCHW: Layout = ()


class Image(NamedTuple):
    """What bytes should hold: those of `root` stored as `dtype` in `layout`, from byte `at` of that image on."""

    root: Value
    dtype: str
    layout: Layout
    at: int


#: (first byte, end, image): a range of bytes and what it should hold.
Span = tuple[int, int, Image]
#: Ranges of bytes in order and apart.
Pieces = list[Span]


def is_same(one: Span, other: Span) -> bool:
    """Whether two pieces say the same of the bytes that they share."""
    return one[2][:3] == other[2][:3] and one[2].at - one[0] == other[2].at - other[0]


def apart(found: Pieces) -> Pieces | None:
    """Pieces in any order as one of each byte, neighbours made one where the image runs on; None if two pieces say of
    one byte that it is not the same.
    """
    pieces: Pieces = []
    for piece in sorted(found, key=itemgetter(0)):
        last = pieces[-1] if pieces else None
        if last is not None and piece[0] <= last[1] and is_same(last, piece):
            pieces[-1] = (last[0], max(last[1], piece[1]), last[2])
        elif last is not None and piece[0] < last[1]:
            return None
        else:
            pieces.append(piece)
    return pieces


def within(pieces: Pieces, shift: int, lo: int, hi: int) -> Pieces:
    """What of `pieces` lies in `[lo, hi)`, if byte 0 of them is byte `-shift`."""
    found: Pieces = []
    at = max(bisect_right(pieces, lo + shift, key=itemgetter(0)) - 1, 0)
    while at < len(pieces) and pieces[at][0] - shift < hi:
        start, end, image = pieces[at]
        a, b = max(start - shift, lo), min(end - shift, hi)
        if a < b:
            found.append((a, b, image._replace(at=image.at + a + shift - start)))
        at += 1
    return found


def meets(some: Pieces, others: Pieces) -> Iterator[tuple[Span, Span]]:
    """Each piece of `some` with each of `others` that shares a byte with it: O(log n) a piece, and the pairs."""
    for piece in some:
        at = max(bisect_right(others, piece[0], key=itemgetter(0)) - 1, 0)
        while at < len(others) and others[at][0] < piece[1]:
            if max(others[at][0], piece[0]) < min(others[at][1], piece[1]):
                yield piece, others[at]
            at += 1


class Place(NamedTuple):
    """A resolved operand: bytes `[lo, hi)` of a space, through which buffer."""

    space: ByteMap
    lo: int
    hi: int
    buffer: int
    freed: bool = False

    def overlaps(self, other: Place) -> bool:
        return (
            self.space is other.space
            and self.lo < other.hi
            and other.lo < self.hi
            and self.lo < self.hi
            and other.lo < other.hi
        )

    def __str__(self) -> str:
        return f"bytes [{self.lo}, {self.hi}) of {self.space.device} {self.space.name}"


@dataclass(slots=True, eq=False)
class Content:
    """What one write left behind. `root=None`: no value (freed, or copied from bytes that held none).

    value    the value that was written: `root`, or a view of it
    at       the image's byte that came to the place's first
    writer   the instruction's index; None: there at the start
    place    where it was written
    source   for a copy: the content that was copied
    fault    why the bytes are not even that of `root`, or ""
    """

    value: Value | None
    root: Value | None
    dtype: str
    layout: Layout
    at: int
    writer: int | None
    place: Place
    source: Content | None = None
    fault: str = ""


class Piece(NamedTuple):
    """Bytes `[lo, hi)` hold `content`, byte `p` that of image byte `p + shift`; content None: never written."""

    lo: int
    hi: int
    content: Content | None
    shift: int

    def is_of(self, image: Image, shift: int) -> bool:
        """Whether these bytes are of `image`, byte `p` being image byte `p + shift`."""
        content = self.content
        return (
            content is not None
            and content.root is image.root
            and self.shift == shift
            and content.dtype == image.dtype
            and content.layout == image.layout
            and not content.fault
        )


@dataclass(slots=True, eq=False)
class ByteMap:
    """One space of a device. `pinned` are the ranges that may not be written, each with its feed or parameter."""

    device: str
    name: str
    pinned: list[tuple[int, int, Value]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _pieces: dict[int, Piece] = field(default_factory=dict)

    def write(self, lo: int, hi: int, content: Content, shift: int) -> None:
        """From now on `[lo, hi)` holds `content`, byte `p` its image's byte `p + shift`."""
        if lo >= hi:
            return
        starts, pieces = self._starts, self._pieces
        old = pieces.get(lo)
        new = Piece(lo, hi, content, shift)
        if old is not None and old.hi == hi:
            pieces[lo] = new
            return
        first = bisect_left(starts, lo)
        tail: Piece | None = None
        if first:
            before = pieces[starts[first - 1]]
            if before.hi > lo:
                pieces[before.lo] = before._replace(hi=lo)
                tail = before if before.hi > hi else None
        last = first
        while last < len(starts) and starts[last] < hi:
            covered = pieces.pop(starts[last])
            tail = covered if covered.hi > hi else None
            last += 1
        pieces[lo] = new
        if tail is None:
            starts[first:last] = (lo,)
        else:
            pieces[hi] = tail._replace(lo=hi)
            starts[first:last] = (lo, hi)

    def holds(self, lo: int, hi: int, image: Image) -> bool:
        """Whether `[lo, hi)` holds exactly `image` (from its byte `image.at` on)."""
        if lo >= hi:
            return True
        shift = image.at - lo
        piece = self._pieces.get(lo)
        if piece is not None and piece.hi >= hi:
            return piece.is_of(image, shift)
        return all(piece.is_of(image, shift) for piece in self.read(lo, hi))

    def read(self, lo: int, hi: int) -> list[Piece]:
        """The pieces of `[lo, hi)`, cut to it, in order and without gaps."""
        found: list[Piece] = []
        starts = self._starts
        index = bisect_left(starts, lo)
        if index and self._pieces[starts[index - 1]].hi > lo:
            index -= 1
        at = lo
        while index < len(starts) and starts[index] < hi:
            piece = self._pieces[starts[index]]
            if piece.lo > at:
                found.append(Piece(at, piece.lo, None, 0))
            end = min(piece.hi, hi)
            found.append(Piece(max(piece.lo, lo), end, piece.content, piece.shift))
            at = end
            index += 1
        if at < hi:
            found.append(Piece(at, hi, None, 0))
        return found
