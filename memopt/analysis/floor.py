"""The bytes that no sharing can do without in the listed order: the content that is needed at each step.

Holds true: whatever storage a pass chooses (views that are runs of bytes, joins, in place, reuse) and wherever packing
puts it, at step s there are at least `needed_bytes(graph)[s]` live bytes, feeds and parameters included. Content is
counted once under whichever names (see `Aliases.runs`); an output costs nothing where its op may write it over an input
that dies there. Another order, views in strides, recomputation or fusion can need less. Linear in runs, but for content
that is cut in many ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from memopt.analysis.alias import Aliases, analyze_aliases
from memopt.analysis.liveness import Interval, Liveness, analyze_liveness, profile_of
from memopt.ir import Graph, Node, Value

__all__ = ["content_bytes", "in_place_bytes", "needed_bytes"]


def needed_bytes(graph: Graph) -> NDArray[np.int64]:
    """The least live bytes at each step, shape (num_steps,)."""
    liveness, aliases = analyze_liveness(graph), analyze_aliases(graph)
    needed = profile_of(_spans_of_content(liveness, aliases), liveness.num_steps)
    for step, node in enumerate(graph.nodes):
        needed[step] -= in_place_bytes(liveness, aliases, node, step)
    return needed


def _spans_of_content(liveness: Liveness, aliases: Aliases) -> Iterator[tuple[Interval, int]]:
    """When each byte of content is live under any name, without overlap: (steps, number of bytes)."""
    holders: dict[Value, list[tuple[int, int, Interval]]] = {}
    for value, span in liveness.intervals.items():
        for run in aliases.runs(value):
            holders.setdefault(run.root, []).append((run.at, run.at + run.high - run.low, span))
    for found in holders.values():
        cuts = sorted({byte for low, high, _ in found for byte in (low, high)})
        for low, high in itertools.pairwise(cuts):
            end = 0
            for span in sorted(span for a, b, span in found if a <= low and high <= b):
                if span.end > end:
                    yield Interval(max(span.start, end), span.end), high - low
                    end = span.end


def content_bytes(aliases: Aliases, values: Iterable[Value]) -> int:
    """Bytes of distinct content in `values`."""
    ranges: dict[Value, list[tuple[int, int]]] = {}
    for value in values:
        for run in aliases.runs(value):
            ranges.setdefault(run.root, []).append((run.at, run.at + run.high - run.low))
    total = 0
    for found in ranges.values():
        end = 0
        for low, high in sorted(found):
            total += max(high - max(low, end), 0)
            end = max(end, high)
    return total


def in_place_bytes(liveness: Liveness, aliases: Aliases, node: Node, step: int) -> int:
    """Bytes of outputs that may lie over an input that dies at this step."""
    saved = 0
    for number, output in node.real_outputs:
        if aliases.runs(output) and aliases.runs(output)[0].root is not output:
            continue  # a view or a join: it has no bytes of its own
        pairs = [p.input for p in node.spec.inplace if p.output == number and _allows(node, p.condition)]
        indexes = [*pairs, *(i for o, i in node.spec.updates.items() if o == number)]
        sources = [node.inputs[i] for i in indexes if i < len(node.inputs)]
        if any(v is not None and liveness.intervals[v].end == step + 1 and v not in liveness.kept for v in sources):
            saved += output.nbytes
    return saved


def _allows(node: Node, condition: object) -> bool:
    return not callable(condition) or condition(node.input_types, node.output_types, node.attrs) is None
