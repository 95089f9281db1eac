"""Collects what is wrong with a model, so that one error can name all of it.

Holds true: what a file says (names, reasons) is shown cut to a readable length, so that a hostile file cannot flood
an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memopt.errors import LoadError, UnsupportedOpError

__all__ = ["Problems", "RefusedError", "shown"]

_MOST = 40


def shown(text: object, most: int = 80) -> str:
    """`text` for a message: one line, at most `most` characters."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


class RefusedError(Exception):
    """One node cannot be used, for the reason given; caught by the loader, which goes on to the next node."""


@dataclass(slots=True)
class Problems:
    """What was found so far: (op, reason) -> names of the nodes; missing features of ours, and faults of the file."""

    unsupported: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    faults: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def unsupported_op(self, op: str, node: str, reason: str) -> None:
        """Memopt lacks this op, or this form of it."""
        self.unsupported.setdefault((op, reason), []).append(node)

    def fault(self, op: str, node: str, reason: str) -> None:
        """The file is wrong here."""
        self.faults.setdefault((op, reason), []).append(node)

    def raise_any(self, source: str) -> None:
        """Raise one error that lists all problems, if there are any."""
        if not self.unsupported and not self.faults:
            return
        both = [*self.unsupported.items(), *self.faults.items()]
        lines = [_line(op, reason, nodes) for (op, reason), nodes in both[:_MOST]]
        if len(both) > _MOST:
            lines.append(f"and {len(both) - _MOST} more kinds")
        if self.unsupported:
            head = f"{source} uses what memopt lacks"
            raise UnsupportedOpError(f"{head}:\n  " + "\n  ".join(lines))
        raise LoadError(f"{source} cannot be loaded:\n  " + "\n  ".join(lines))


def _line(op: str, reason: str, nodes: list[str]) -> str:
    names = ", ".join(shown(name, 40) or "(no name)" for name in nodes[:3])
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
    return f"{shown(op, 40)} ({times}: {names}{more}): {shown(reason, 500)}"
