"""A hazard down the whole line: every strategy, policy and machine, three runs with changed feeds, the right values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import passes
from memopt import Finding, Graph, Machine, Plan, compile, validate

__all__ = ["STRATEGIES", "forced", "give", "lent", "plans", "right_everywhere", "wrong_everywhere"]

Arrays = Mapping[str, np.ndarray[Any, Any]]

#: What must be right, whatever it is given. (Not `fuse`: each chain of ops that it fuses is code to compile.)
STRATEGIES: dict[str, Any] = {name: chain for name, chain in passes.STRATEGIES.items() if name != "fuse"}
#: What may be wrong, but never silently.
FLUID: dict[str, Any] = {
    "fluid 1.5": (
        passes.InplaceRename(fluid_rules=True, min_elements=0),
        passes.ReuseRename(fluid_rules=True, min_elements=0),
    ),
    "fluid 1.6": (passes.InplaceShare(fluid_rules=True), passes.ReuseShare(fluid_rules=True)),
}


def give(**feeds: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Feeds as arrays; lists become float32."""
    return {name: v if isinstance(v, np.ndarray) else np.asarray(v, np.float32) for name, v in feeds.items()}


def plans(graph: Graph, lacks: str = "", **options: Any) -> Iterator[tuple[str, Plan]]:
    """Every sound plan: on the host alone, on host and gpu, and on a gpu that lacks the kernels of `lacks`."""
    machines = {"host": Machine.host_only(), "gpu": Machine.host_and("gpu")}
    if lacks:
        machines["gpu lacks " + lacks] = Machine.host_and("gpu", lacks=set(lacks.split()))
    for where, machine in machines.items():
        for name, strategy in STRATEGIES.items():
            for transfer in ("publish", "outer"):
                yield f"{name}, {transfer}, {where}", compile(graph, strategy, machine, transfer, **options)


def _fluid_plans(graph: Graph, lacks: str) -> Iterator[tuple[str, Plan]]:
    for name, strategy in FLUID.items():
        for machine in (Machine.host_only(), Machine.host_and("gpu", lacks=set(lacks.split()))):
            for transfer in ("publish", "fluid-1.5"):
                yield f"{name}, {transfer}", compile(graph, strategy, machine, transfer, validate=False)


def right_everywhere(
    graph: Graph, feeds: Arrays, right: Callable[..., Mapping[str, Any]], *, lacks: str = "", **options: Any
) -> None:
    """Every sound plan gives `right(**feeds)`, three times, and leaves feeds alone; Fluid's do, or are rejected."""
    before = {value.name: np.array(graph.param_data(value)) for value in graph.params}
    for label, plan in plans(graph, lacks, **options):
        assert validate(plan, findings="return") == [], label
        _three_runs(label, plan, feeds, right)
    for label, plan in _fluid_plans(graph, lacks):
        if not validate(plan, findings="return"):
            _three_runs(label, plan, feeds, right)
    for name, array in before.items():
        np.testing.assert_array_equal(graph.param_data(name), array, err_msg=f"the graph's own %{name} was written")


def lent(plan: Plan, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """The feeds, with copies of those that are donated: a run may overwrite them."""
    return {name: array.copy() if name in plan.graph.donated else array for name, array in feeds.items()}


def _three_runs(label: str, plan: Plan, feeds: Arrays, right: Callable[..., Mapping[str, Any]]) -> None:
    others = {name: (array * 2 + 1).astype(array.dtype) for name, array in feeds.items()}
    first: dict[str, bytes] = {}
    for number, now in enumerate((feeds, others, feeds)):
        kept = {name: array.copy() for name, array in now.items()}
        got = plan.run(lent(plan, now), sanitize=number == 1)
        for name, want in right(**now).items():
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6, err_msg=f"{label}: %{name}, run {number}")
        for name, array in kept.items():
            np.testing.assert_array_equal(now[name], array, err_msg=f"{label}: feed {name}")
        bits = {name: array.tobytes() for name, array in got.items()}
        first = first or bits
        if number == 2 and not plan.graph.params:
            assert bits == first, f"{label}: the third run differs from the first"


def forced(graph: Graph, value: str, over: str, offset: int = 0, *, rename: bool = False) -> Plan:
    """A plan in which `value` has the bytes of `over` (from byte `offset` on), or its name, whatever passes say."""
    graph = graph.copy()
    storage = graph.storage
    mine, theirs = (storage.variable(graph.value(name)) for name in (value, over))
    if rename:
        storage.rename(mine, theirs)
    else:
        storage.share(mine, theirs.buffer, theirs.offset + offset)
    return compile(graph, "none", validate=False)


def wrong_everywhere(plan: Plan, feeds: Arrays, right: Mapping[str, Any], *kinds: str) -> list[Finding]:
    """The plan is rejected, with findings of these kinds only; and it really is wrong. Returns the findings."""
    findings = validate(plan, findings="return")
    assert findings, "nothing was found"
    if kinds:
        assert {f.kind for f in findings} <= set(kinds), [str(f) for f in findings]
    got = plan.run(feeds)
    assert any(not np.array_equal(got[name], want) for name, want in right.items()), "rejected, but right"
    return findings
