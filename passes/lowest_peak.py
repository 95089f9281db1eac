"""`LowestPeak`: of several chains of passes, the one after which the fewest bytes are live at once.

What a pass takes can hinder a later one: a view that costs nothing may keep an input alive over which an output could
have been written. Each pass judges by the peak as it finds it; this one tries whole chains on copies of the graph, and
runs the best of them. Chains are compared by the sum of the devices' peaks; among equals one that changes nothing comes
first (so that a second run says "not modified"), then the later one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from memopt.analysis import ExecutionOrder, Occupancy, check_order
from memopt.ir import Graph
from memopt.pipeline import Decision, Pass, PassResult, run_pipeline

__all__ = ["LowestPeak"]

@dataclass(frozen=True)
class LowestPeak:
    """Run the chain of `alternatives` that leaves the lowest peak; `order` is passed on to the passes that have one."""

    alternatives: tuple[tuple[Pass, ...], ...]
    order: ExecutionOrder = "listed"
    name: ClassVar[str] = "lowest-peak"

    def __post_init__(self) -> None:
        check_order(self.order)

    @property
    def parts(self) -> tuple[Pass, ...]:
        """Every pass of every chain, each name once."""
        return tuple({one.name: one for chain in self.alternatives for one in chain}.values())

    def without(self, names: Collection[str]) -> LowestPeak:
        """The same without the passes of these names."""
        chains = dict.fromkeys(tuple(one for one in chain if one.name not in names) for chain in self.alternatives)
        return replace(self, alternatives=tuple(chains))

    def run(self, graph: Graph) -> PassResult:
        chains = [tuple(self._ordered(one) for one in chain) for chain in self.alternatives]
        chosen, others = _choose(graph, chains)
        results = run_pipeline(graph, chosen)
        decisions = [*others, *(decision for result in results for decision in result.decisions)]
        return PassResult(any(result.modified for result in results), decisions)

    def _ordered(self, one: Any) -> Any:
        return replace(one, order=self.order) if self.order != "listed" and hasattr(one, "order") else one


def _choose(graph: Graph, chains: list[tuple[Pass, ...]]) -> tuple[tuple[Pass, ...], list[Decision]]:
    """The chain to run, and a refusal for each of the others that is worse."""
    known: _Known = {}
    tried = [_try(graph, chain, known) for chain in chains]
    best = min(range(len(chains)), key=lambda i: (*tried[i], -i), default=None)
    if best is None:
        return (), []
    others = []
    for chain, (peak, _) in zip(chains, tried, strict=True):
        if peak > tried[best][0] and graph.nodes:
            names = ", ".join(one.name for one in chain)
            text = f"{names} would leave a peak of {peak} B; {', '.join(one.name for one in chains[best])} leave "
            text += f"{tried[best][0]} B"
            more = peak - tried[best][0]
            others.append(Decision(LowestPeak.name, graph.nodes[0].name, (), False, text, more, 0, "higher-peak"))
    return chains[best], others


#: (the passes that changed something so far, those that are still to run) -> (peak, whether anything changed).
_Known = dict[tuple[tuple[Pass, ...], tuple[Pass, ...]], tuple[int, bool]]


def _try(graph: Graph, chain: tuple[Pass, ...], known: _Known) -> tuple[int, bool]:
    """(the sum of the devices' peaks after the chain, whether it changes anything)."""
    copy = graph.copy()
    did: tuple[Pass, ...] = ()
    passed = []
    for at, one in enumerate(chain):
        passed.append((did, chain[at:]))
        if passed[-1] in known:
            break
        (result,) = run_pipeline(copy, [one])
        did += (one,) if result.modified else ()
    found = known.get(passed[-1]) if passed else None
    if found is None:
        occupancy = Occupancy(copy)
        found = sum(occupancy.peak(home) for home in occupancy.homes), bool(did)
    known.update(dict.fromkeys(passed, found))
    return found
