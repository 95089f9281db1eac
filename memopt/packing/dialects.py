"""Packing problems as CSV text, in and out.

One line a buffer. A header names the columns, in any order and case:
  id | buffer | buffer_id     lower | start | begin     upper (first step after it) | end (its last step)
  size     alignment     gaps (`3-5 8-9`: half-open, or up to the last step where the column is `end`)     offset
Without a header the columns are id, lower, upper, size and then, as far as they are there, alignment and offset; or
those that `columns` names. Empty lines and lines that begin with `#` are skipped. An empty alignment is 1, an empty
offset is none.

Holds true: what `format_csv` writes, `parse_csv` reads as the same problem. Every fault is one `PackingInputError` that
names the source, the line and the column (the number and name of the field).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from memopt.errors import PackingInputError
from memopt.packing.problem import PackingBuffer, PackingProblem, find_fault

__all__ = ["format_csv", "parse_csv", "parse_offsets", "read_csv", "write_csv"]

_NAMES = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "start": "lower",
    "begin": "lower",
    "upper": "upper",
    "end": "end",
    "size": "size",
    "alignment": "alignment",
    "gaps": "gaps",
    "offset": "offset",
}
_PLAIN = ("id", "lower", "upper", "size", "alignment", "offset")
_FIELDS = {"start": "lower", "end": "upper"}  # field of a buffer -> column, where they differ
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_GAP = re.compile(r"(-?[0-9]+)-(-?[0-9]+)", re.ASCII)
_LONGEST = 40  # digits of a number worth converting; any that has more is out of range


def read_csv(
    path: str | os.PathLike[str],
    *,
    pins: bool = False,
    capacity: int | None = None,
    columns: Sequence[str] | None = None,
) -> PackingProblem:
    """The problem in the file `path`; see `parse_csv`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackingInputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise PackingInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_csv(text, source=str(path), pins=pins, capacity=capacity, columns=columns)


def parse_csv(
    text: str,
    *,
    source: str = "<text>",
    pins: bool = False,
    capacity: int | None = None,
    columns: Sequence[str] | None = None,
) -> PackingProblem:
    """The problem in `text`. An offset column pins buffers if `pins` says so, else it is left alone."""
    reader = _Reader(source, pins)
    buffers: list[PackingBuffer] = []
    lines: dict[str, int] = {}
    for row in reader.rows(text, columns):
        buffer = reader.buffer(row)
        if buffer.id in lines:
            row.fail("id", f"buffer id {buffer.id!r} occurs twice, first in line {lines[buffer.id]}; ids are distinct")
        lines[buffer.id] = row.line
        buffers.append(buffer)
    return PackingProblem(tuple(buffers), capacity)


def parse_offsets(text: str, *, source: str = "<text>", columns: Sequence[str] | None = None) -> dict[str, int]:
    """The offset column of `text` (id -> offset): what a packer wrote. Rows without an offset are left out."""
    reader = _Reader(source, pins=True)
    buffers = [reader.buffer(row) for row in reader.rows(text, columns)]
    return {buffer.id: buffer.offset for buffer in buffers if buffer.offset is not None}


def format_csv(problem: PackingProblem, offsets: Mapping[str, int] | None = None, *, header: bool = True) -> str:
    """`problem` as CSV text, with `offsets` (id -> offset) or else its pins; columns that say nothing are left out.

    Raises `PackingInputError` where a text without header cannot say it (gaps).
    """
    aligned = any(buffer.alignment != 1 for buffer in problem.buffers)
    gaps = any(buffer.gaps for buffer in problem.buffers)
    placed = offsets is not None or any(buffer.offset is not None for buffer in problem.buffers)
    if gaps and not header:
        raise PackingInputError("a CSV without header has no column for gaps; write it with a header")
    names = ["id", "lower", "upper", "size"]
    names += ["alignment"] * (aligned or (placed and not header)) + ["gaps"] * gaps + ["offset"] * placed
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(names)
    for buffer in problem.buffers:
        if buffer.id != buffer.id.strip() or not buffer.id or buffer.id.startswith("#"):
            raise PackingInputError(
                f"buffer id {buffer.id!r} cannot stand in a CSV: it is empty, begins with # or a space"
            )
        at = buffer.offset if offsets is None else offsets[buffer.id]
        cells: dict[str, object] = {
            "id": buffer.id,
            "lower": buffer.start,
            "upper": buffer.end,
            "size": buffer.size,
            "alignment": buffer.alignment,
            "gaps": " ".join(f"{lower}-{upper}" for lower, upper in buffer.gaps),
            "offset": "" if at is None else at,
        }
        writer.writerow([cells[name] for name in names])
    return out.getvalue()


def write_csv(
    path: str | os.PathLike[str],
    problem: PackingProblem,
    offsets: Mapping[str, int] | None = None,
    *,
    header: bool = True,
) -> None:
    """Write `format_csv` of the same arguments to `path`."""
    Path(path).write_text(format_csv(problem, offsets, header=header), encoding="utf-8")


@dataclass(slots=True)
class _Row:
    """One line: its cells by column name."""

    source: str
    line: int
    columns: tuple[str, ...]
    cells: dict[str, str]

    def fail(self, column: str, why: str) -> NoReturn:
        """Raise the error for a cell."""
        name = column if column in self.columns else {"upper": "end"}.get(column, column)
        number = self.columns.index(name) + 1 if name in self.columns else len(self.columns)
        raise PackingInputError(f"{self.source}, line {self.line}, column {number} ({name}): {why}")

    def integer(self, column: str, text: str | None = None) -> int:
        """The cell (or a part of it) as an integer."""
        text = self.cells[column] if text is None else text
        if not _INTEGER.fullmatch(text):
            self.fail(column, f"{_shown(text)} is not an integer")
        if len(text) > _LONGEST:
            self.fail(column, f"{_shown(text)} is beyond 2^62")
        return int(text)


class _Reader:
    """Turns lines into buffers."""

    def __init__(self, source: str, pins: bool) -> None:
        self.source, self.pins = source, pins

    def rows(self, text: str, columns: Sequence[str] | None) -> Iterator[_Row]:
        """The lines that hold buffers. Raises `PackingInputError` where the table has no shape."""
        lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
        known = None if columns is None else self._header([name.strip().lower() for name in columns], 0)
        first = True
        for cells, line in self._cells(lines):
            if first and self._is_header(cells):
                known = self._header([cell.lower() for cell in cells], line)
            else:
                known = known or self._by_count(cells, line)
                if len(cells) != len(known):
                    place = f"{self.source}, line {line}, column {min(len(cells), len(known)) + 1}"
                    raise PackingInputError(f"{place}: {len(cells)} fields where {len(known)} are expected")
                yield _Row(self.source, line, known, dict(zip(known, cells, strict=True)))
            first = False

    def _cells(self, lines: Iterator[list[str]]) -> Iterator[tuple[list[str], int]]:
        """Stripped cells and the line number of each line that says something."""
        while True:
            at: int = lines.line_num + 1  # type: ignore[attr-defined]
            try:
                cells = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                raise PackingInputError(f"{self.source}, line {at}, column 1: not CSV: {error}") from None
            cells = [cell.strip() for cell in cells]
            if any(cells) and not cells[0].startswith("#"):
                yield cells, at

    @staticmethod
    def _is_header(cells: list[str]) -> bool:
        return len(cells) > 1 and not any(_INTEGER.fullmatch(cell) for cell in cells[1:]) and cells[1] != ""

    def _header(self, names: list[str], line: int) -> tuple[str, ...]:
        where = f"{self.source}, line {line}" if line else "columns"
        known: list[str] = []
        for number, name in enumerate(names, 1):
            column = _NAMES.get(name)
            place = f"{where}, column {number}"
            if column is None:
                raise PackingInputError(f"{place}: {_shown(name)} is not a column; those are {', '.join(_NAMES)}")
            if column in known or {column, *known} >= {"upper", "end"}:
                raise PackingInputError(f"{place}: a second column for {column!r}")
            known.append(column)
        for need in ("id", "lower", "upper", "size"):
            if need not in known and not (need == "upper" and "end" in known):
                raise PackingInputError(f"{where}, column {len(names) + 1}: there is no column {need!r}")
        return tuple(known)

    def _by_count(self, cells: list[str], line: int) -> tuple[str, ...]:
        if not 4 <= len(cells) <= len(_PLAIN):
            place = f"{self.source}, line {line}, column {min(len(cells), len(_PLAIN)) + 1}"
            raise PackingInputError(f"{place}: {len(cells)} fields; without a header they are {', '.join(_PLAIN)}")
        return _PLAIN[: len(cells)]

    def buffer(self, row: _Row) -> PackingBuffer:
        """The buffer in `row`."""
        last = "end" in row.columns
        upper = row.integer("end") + 1 if last else row.integer("upper")
        size, lower = row.integer("size"), row.integer("lower")
        alignment = row.integer("alignment") if row.cells.get("alignment") else 1
        offset = row.integer("offset") if self.pins and row.cells.get("offset") else None
        gaps = tuple(self._gaps(row, int(last)))
        if not row.cells["id"]:
            row.fail("id", "an id is empty")
        fields = (row.cells["id"], size, lower, upper, alignment, offset, gaps)
        try:
            return PackingBuffer(*fields)
        except PackingInputError:
            field, why = find_fault(*fields[1:]) or ("id", "")
            row.fail(_FIELDS.get(field, field), why)

    @staticmethod
    def _gaps(row: _Row, last: int) -> Iterator[tuple[int, int]]:
        for text in row.cells.get("gaps", "").split():
            match = _GAP.fullmatch(text)
            if match is None:
                row.fail("gaps", f"{_shown(text)} is not a gap of the form 3-5")
            yield row.integer("gaps", match[1]), row.integer("gaps", match[2]) + last


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")
