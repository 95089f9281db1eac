"""Every error that memopt raises on purpose, in one tree.

A message names the offending thing, its value and the way out. Context that is longer than a line (the nodes
around a fault, the list of live values) goes into a note (`BaseException.add_note`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "BudgetError",
    "CapacityError",
    "ConflictError",
    "DonationError",
    "ExecutionError",
    "FeedError",
    "GradientError",
    "InfeasibleError",
    "InvalidPlanError",
    "LoadError",
    "MemoptError",
    "MissingValueError",
    "OptionError",
    "PackingInputError",
    "ParseError",
    "PassError",
    "PlanError",
    "TypeInferenceError",
    "UnsupportedOpError",
    "VerifyError",
]


class MemoptError(Exception):
    """The root: whatever memopt raises on purpose is one of these."""


class OptionError(MemoptError, ValueError):
    """An argument or option that has no such value; the message lists the values there are."""


class LoadError(MemoptError):
    """A model file cannot be read: broken, hostile, or not in a form that memopt can plan."""


class ParseError(LoadError):
    """A text graph is malformed; the message gives line and column."""


class UnsupportedOpError(LoadError):
    """A graph uses an op (or a form of one) that memopt lacks; all of them are named at once."""


class TypeInferenceError(MemoptError):
    """Inputs or attributes of a node do not fit its op."""


class GradientError(MemoptError):
    """A gradient that cannot be formed: an op on the path has none, or the path leads through an update."""


class VerifyError(MemoptError):
    """A graph breaks a rule that every graph obeys (SSA, order, types, storage)."""


class PassError(MemoptError):
    """A pass failed or left a graph that does not verify; names the pass and those before it."""


class PlanError(MemoptError):
    """A plan cannot be made, read or used."""


class CapacityError(PlanError):
    """A plan needs more bytes than a device has; says by how many."""


class InfeasibleError(PlanError):
    """There is no answer under the given limits; says by how many bytes and which values are live."""


class BudgetError(InfeasibleError):
    """A byte budget that no plan can meet."""


class ConflictError(PlanError):
    """Two buffers that are live together were given overlapping bytes; names the pair."""


class PackingInputError(PlanError):
    """A packing problem is malformed; a problem that came from a file is named by line and column."""


class DonationError(PlanError):
    """A feed is donated, but nothing is ever written over it; names every such feed, with the reason."""


class InvalidPlanError(PlanError):
    """A plan does not compute what its graph says. `findings` lists why."""

    def __init__(self, message: str, findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.findings = list(findings)


class FeedError(MemoptError):
    """Feeds do not fit the graph: a missing or unknown name, a wrong shape or dtype, an array that was consumed."""


class MissingValueError(MemoptError, KeyError):
    """A run's result has no such value: it was not kept, or there is none; the message says how to keep it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ExecutionError(MemoptError):
    """A kernel reported a failure, or the sanitizer caught a wrong access."""
