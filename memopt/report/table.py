"""One kind of table for all that people read: plain ASCII text of at most 80 columns, or a rich table in a terminal.

Holds true: `str(table)` has no escape codes, and no character beyond ASCII but those of its cells; no line is over
`WIDTH` columns, as the widest left-aligned columns are cut with `...` where the text would not fit.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["WIDTH", "Table", "row_dict"]

WIDTH = 80
_SHORTEST = 8
_STYLES = {"ok": "green", "WRONG": "bold red", "accepted": "green"}


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """A title, columns, rows and notes.

    columns  headers; one that starts with ">" has its column aligned to the right (numbers)
    rows     cells as text; a row of no cells is a rule
    notes    paragraphs under the table, wrapped to its width
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(column.removeprefix(">") for column in self.columns)

    def __str__(self) -> str:
        widths, gap = self._layout()
        right = [column.startswith(">") for column in self.columns]
        rule = gap.join("-" * width for width in widths)
        lines = textwrap.wrap(self.title, WIDTH)
        if self.columns:
            lines += ["", _line(self.headers, widths, right, gap), rule]
        lines += [_line(row, widths, right, gap) if row else rule for row in self.rows]
        return "\n".join([*lines, *self._wrapped_notes()])

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        widths, gap = self._layout()
        grid = RichTable(box=None, padding=(0, len(gap), 0, 0), collapse_padding=True, pad_edge=False, show_edge=False)
        for header, column, width in zip(self.headers, self.columns, widths, strict=True):
            grid.add_column(
                Text(header, "bold"), justify="right" if column.startswith(">") else "left", width=width, no_wrap=True
            )
        for row in ((), *self.rows):
            cells = (
                [_cut(cell, width) for cell, width in zip(row, widths, strict=True)]
                if row
                else ["-" * w for w in widths]
            )
            grid.add_row(*(Text(cell, _style(cell)) for cell in cells))
        title = [Text(line, "bold") for line in textwrap.wrap(self.title, WIDTH)]
        notes = [Text(line, "dim") for line in self._wrapped_notes()]
        middle: list[Text | RichTable] = [Text(), grid] if self.columns else []
        return Group(*title, *middle, *notes)

    def _wrapped_notes(self) -> list[str]:
        lines: list[str] = []
        for note in self.notes:
            lines += ["", *textwrap.wrap(note, WIDTH, break_on_hyphens=False)]
        return lines

    def _layout(self) -> tuple[list[int], str]:
        """Widths of the columns and the gap between them, such that a line fits."""
        table = [self.headers, *(row for row in self.rows if row)]
        widths = [max(len(row[i]) for row in table) for i in range(len(self.columns))]
        gap = "  "
        if sum(widths) + len(gap) * (len(widths) - 1) > WIDTH:
            gap = " "
        excess = sum(widths) + len(gap) * (len(widths) - 1) - WIDTH
        while excess > 0:
            cuttable = [
                i for i, column in enumerate(self.columns) if not column.startswith(">") and widths[i] > _SHORTEST
            ]
            if not cuttable:
                break
            widest = max(cuttable, key=lambda i: widths[i])
            widths[widest] -= 1
            excess -= 1
        return widths, gap


def _cut(cell: str, width: int) -> str:
    """The cell in at most `width` characters; what is left out is in the middle, as names differ at their ends."""
    if len(cell) <= width:
        return cell
    kept = max(width - 3, 0)
    return cell[: kept // 2] + "..." + cell[len(cell) - (kept - kept // 2) :]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], gap: str) -> str:
    cells = [_cut(cell, width) for cell, width in zip(row, widths, strict=True)]
    padded = [c.rjust(w) if flush else c.ljust(w) for c, w, flush in zip(cells, widths, right, strict=True)]
    return gap.join(padded).rstrip()


def _style(cell: str) -> str:
    return _STYLES.get(cell.split(":")[0], "")


def row_dict(names: Sequence[str], source: Any) -> dict[str, Any]:
    """The attributes `names` of `source`, for JSON."""
    return {name: getattr(source, name) for name in names}
