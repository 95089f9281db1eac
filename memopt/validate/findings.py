"""Findings: what is wrong with a plan, one record each, and the list that they are collected in.

Holds true: a finding names the instruction, the value, the bytes and both parties in words. What is wrong for one
reason (one value missing at several readers, for the same culprit) is reported once, at its first reader, with the
number of the later ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

__all__ = ["FINDING_KINDS", "Finding", "Report"]

#: kind -> what it means.
FINDING_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "stale-read": "the bytes read hold another value",
        "lost-update": "the bytes hold an older value of the same variable; the right one was written somewhere else",
        "clobbered": "the value was in these bytes, but has been overwritten (or freed)",
        "partial-overwrite": "the value was in these bytes, but part of it has been overwritten",
        "read-before-write": "nothing was written to the bytes yet, or the value has not been computed yet",
        "illegal-inplace": "an output is written over an input where the op does not allow it",
        "overlap": "two outputs of one instruction, an output and a part of an input, or two feeds, share bytes",
        "pinned-write": "a write to an undonated feed, or to a parameter that no node updates",
        "false-view": "an output, which no kernel writes, is said to be a view of bytes that do not hold it",
        "wrong-form": "dtype or layout of the bytes is not what the kernel (or the copy) takes them for",
        "wrong-device": "an instruction touches bytes of a device that is not its own, or runs where it has no kernel",
        "lost-output": "at the end, an output is not where the plan says",
        "lost-parameter": "at the end, a parameter's home does not hold its last value",
        "lost-feed": "at the end, an undonated feed does not hold itself any more",
        "unordered": "any-order mode: no edge orders two instructions that touch the same bytes, one of which writes",
        "misaligned": "a slot's offset breaks the device's alignment",
        "out-of-bounds": "bytes outside of their buffer, slot, arena, scratch or device",
        "malformed": "no program over this graph: nodes unknown, missing or twice, wrong arity, use after free",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a plan is wrong.

    kind         a key of `FINDING_KINDS`
    instruction  its index in the program; None: before the start or at the end
    value        the value's name (or "")
    message      all of it in words
    node, device  where it happens (or "")          culprit      the other instruction's index, where there is one
    lower, upper  the bytes in question, half-open, within the slot's space
    """

    kind: str
    instruction: int | None
    value: str
    message: str
    node: str = ""
    device: str = ""
    culprit: int | None = None
    lower: int = 0
    upper: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Report:
    """Findings in the order in which they were found."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._again: list[int] = []
        self._known: dict[Hashable, int] = {}

    def add(self, finding: Finding, same: Hashable = None) -> None:
        """Add a finding, unless one with the same reason (`same`; None: never) is there: then count it there."""
        if same is not None:
            first = self._known.setdefault(same, len(self._found))
            if first < len(self._found):
                self._again[first] += 1
                return
        self._found.append(finding)
        self._again.append(0)

    def knows(self, same: Hashable) -> bool:
        """Whether a finding with this reason was added."""
        return same in self._known

    def findings(self) -> list[Finding]:
        """All of them."""
        return [
            replace(finding, message=f"{finding.message} (and {again} more for the same reason)") if again else finding
            for finding, again in zip(self._found, self._again, strict=True)
        ]
