"""What is wrong with a plan, told two ways: whose fault each lost value is, and what a run shows of it.

Holds true: 1. A lost value is the *program's own* fault if it is the output of an update (`Momentum`, or running
statistics), whose variable is its input's by definition: with no pass it would be lost as well. All others are the
*pass's*.   2. Runs are held against `runtime.reference`, which knows no storage, no plan and no device.   3. Updated
parameters are compared by how far the step *moved* them: an error of 1 is an update that never happened.   4. An array
differs only if it is further off than rounding explains, which a run on the host alone, without any pass, shows: where
an activation near zero changes its sign by rounding, its gradient changes by all of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, Value
from memopt.validate import Finding

__all__ = [
    "GROUPS",
    "Difference",
    "Errors",
    "Expected",
    "LostValue",
    "differences",
    "lost_values",
    "max_rel_error",
    "updated_params",
]

Arrays = Mapping[str, NDArray[Any]]
Group = Literal["outputs", "parameters", "statistics", "state"]

#: What a run leaves behind: outputs, trained parameters, running statistics, and the optimizer's state.
GROUPS: tuple[Group, ...] = ("outputs", "parameters", "statistics", "state")
#: A result that is off by more than this is called different (float32 sums in another order are off by about 1e-6).
TOLERANCE = 1e-3
#: How many times the error that rounding causes is still called rounding.
_SLACK = 4.0
_LOST = ("lost-update", "lost-parameter", "lost-output")


@dataclass(frozen=True, slots=True)
class LostValue:
    """A value that is not where the graph needs it: whose fault that is, and the first finding's words."""

    value: str
    fault: Literal["pass", "program"]
    message: str


@dataclass(frozen=True, slots=True)
class Difference:
    """How many arrays of a group a run got wrong: `differing` of `count`; the worst one by `error`."""

    differing: int
    count: int
    worst: str
    error: float

    def __str__(self) -> str:
        return f"{self.differing}/{self.count}"


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one run against the reference: group -> array name -> error."""

    groups: Mapping[Group, Mapping[str, float]]

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max((error for arrays in self.groups.values() for error in arrays.values()), default=0.0)


def lost_values(graph: Graph, findings: Iterable[Finding]) -> tuple[LostValue, ...]:
    """Each value that `findings` miss, once, in the order in which it was missed."""
    updates = {value.name for node in graph.nodes for value in _updates(node)}
    lost: dict[str, LostValue] = {}
    for finding in findings:
        own = finding.value in updates and finding.kind in _LOST
        lost.setdefault(finding.value, LostValue(finding.value, "program" if own else "pass", finding.message))
    return tuple(lost.values())


def _updates(node: Any) -> list[Value]:
    """The outputs of `node` that are updates."""
    return [value for index, value in node.real_outputs if index in node.spec.updates]


def updated_params(graph: Graph) -> dict[str, Group]:
    """parameter that a run updates -> its group.

    An op that only updates is an optimizer: it trains its first operand, and the others are its state. What an op
    updates beside other results are statistics.
    """
    owner = {value: value.name for value in graph.params}
    groups: dict[str, Group] = {}
    for node in graph.nodes:
        optimizer = len(_updates(node)) == len(node.real_outputs)
        for value in _updates(node):
            source = node.inputs[node.spec.updates[value.index]]
            if source in owner and source is not None:
                owner[value] = owner[source]
                group: Group = "statistics" if not optimizer else "parameters" if value.index == 0 else "state"
                groups.setdefault(owner[source], group)
    return groups


class Expected:
    """What a run must leave behind: the reference's outputs and updated parameters, and how far these moved."""

    def __init__(self, graph: Graph, outputs: Arrays, state: Arrays) -> None:
        self.outputs = outputs
        self.groups = updated_params(graph)
        self.state = {name: state[name] for name in self.groups}
        self.moved = {name: _moved(graph.param_data(name), array) for name, array in self.state.items()}

    def errors(self, outputs: Arrays, state: Arrays) -> Errors:
        """The errors of a run: of its outputs, and of the parameters after it."""
        groups: dict[Group, dict[str, float]] = {group: {} for group in GROUPS}
        for name, want in self.outputs.items():
            groups["outputs"][name] = max_rel_error({name: outputs[name]}, {name: want})
        for name, want in self.state.items():
            off, moved = _distance(state[name], want), self.moved[name]
            groups[self.groups[name]][name] = off / moved if 0 < moved < math.inf else off
        return Errors(groups)


def differences(errors: Errors, rounding: Errors | None = None) -> dict[str, Difference]:
    """Which arrays differ by more than `rounding` explains; only groups that there are."""
    found: dict[str, Difference] = {}
    for group, arrays in errors.groups.items():
        if arrays:
            noise = {} if rounding is None else rounding.groups[group]
            wrong = [name for name, error in arrays.items() if not error <= TOLERANCE + _SLACK * noise.get(name, 0.0)]
            worst = max(wrong or arrays, key=lambda name: arrays[name])
            found[group] = Difference(len(wrong), len(arrays), worst, arrays[worst])
    return found


def _moved(before: NDArray[Any] | None, after: NDArray[Any]) -> float:
    """How far a parameter moved (Euclidean); not less than the rounding of its numbers."""
    start = np.zeros_like(after) if before is None else before
    eps = float(np.finfo(after.dtype).eps) if after.dtype.kind == "f" else 0.0
    return max(_distance(start, after), 8 * eps * _distance(np.zeros_like(after), after))


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The Euclidean distance; inf where only one of the two is finite, or where they are infinite in other places."""
    kind = np.result_type(a, b, np.float32)
    x, y = np.asarray(a, kind).reshape(-1), np.asarray(b, kind).reshape(-1)
    with np.errstate(all="ignore"):
        between = x - y
        length = float(np.sqrt(np.dot(between, between)))
    if math.isfinite(length):
        return length
    finite = np.isfinite(y)
    if not np.array_equal(np.isfinite(x), finite) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return math.inf
    return float(np.linalg.norm(x[finite].astype(np.float64) - y[finite]))


def max_rel_error(results: Arrays, expected: Arrays) -> float:
    """The largest difference of any output, relative to that output's largest element (absolute where all are zero).

    inf if one has a nan or an infinity where the other has none.
    """
    worst = 0.0
    for name, want in expected.items():
        have = np.asarray(results[name], np.float64)
        want = np.asarray(want, np.float64)
        finite = np.isfinite(want)
        if not np.array_equal(finite, np.isfinite(have)) or not np.array_equal(
            have[~finite], want[~finite], equal_nan=True
        ):
            return math.inf
        difference = float(np.abs(have[finite] - want[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        worst = max(worst, difference / scale if scale else difference)
    return worst
