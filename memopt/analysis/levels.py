"""The bytes at each step, and what they become if a node is computed inside of one that reads its result.

Fusing node p (at step `first`) into node c (at step `last`), the only reader of p's output t, takes t out of steps
[first, last], lets every operand of p live to `last`, and takes step `first` away. Nothing else changes. Two measures
are kept: the live bytes of each device's buffers as stored (`Occupancy.profile`), and the content that no sharing can
do without (`needed_bytes`, devices together).

Holds true after every `fuse`: both are what they would be for the rewritten graph, at the steps that are left. A trial
costs O(last - first), and O(steps) by NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memopt.analysis.alias import analyze_aliases
from memopt.analysis.floor import content_bytes, in_place_bytes, needed_bytes
from memopt.analysis.liveness import Interval
from memopt.analysis.occupancy import Occupancy
from memopt.ir import Graph, Node, Value
from memopt.types import itemsize

__all__ = ["Fusion", "Levels"]

Profile = NDArray[np.int64]


class Fusion(NamedTuple):
    """The node at step `first`, which reads `reads` and makes `gone`, goes into that at step `last` (on the same
    `device`), which reads `others` besides, and makes `made`. Both are elementwise, or fused already.
    """

    first: int
    last: int
    gone: Value
    reads: tuple[Value, ...]
    others: tuple[Value, ...]
    made: Value
    device: str | None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What the fused node reads."""
        return tuple(dict.fromkeys((*self.reads, *self.others)))


class Levels:
    """Live and needed bytes of a graph whose nodes are being fused, by the steps of the graph as it was."""

    def __init__(self, graph: Graph) -> None:
        occupancy = Occupancy(graph)
        self._nodes: Sequence[Node] = tuple(graph.nodes)
        self._liveness = occupancy.liveness
        self._intervals = occupancy.liveness.intervals
        self._aliases = analyze_aliases(graph)
        self._homes = {home: occupancy.profile(home).copy() for home in occupancy.homes}
        self._needed = needed_bytes(graph)
        self._left = np.ones(occupancy.liveness.num_steps, bool)
        self._fused: dict[int, Fusion] = {}
        self._idle = [value for value in graph.inputs if value not in self._liveness.kept and not value.data_uses]
        self._alone = {v for b in graph.storage.buffers if len(t := graph.storage.tenants(b)) == 1 for v in t}
        self._sharers: dict[Value, list[Value]] = {}
        for value in graph.values:
            for root in dict.fromkeys(run.root for run in self._aliases.runs(value)):
                self._sharers.setdefault(root, []).append(value)

    def needed(self) -> Profile:
        """The needed bytes at each step that is left."""
        return self._needed[self._left]

    def live(self, home: str | None) -> Profile:
        """The live bytes of a home at each step that is left."""
        return self._homes[home][self._left]

    def is_alone(self, value: Value) -> bool:
        """Whether `value` has a buffer of its own."""
        return value in self._alone

    def extended(self, fusion: Fusion) -> list[Value]:
        """The values that would live longer."""
        return [v for v in dict.fromkeys(fusion.reads) if self._intervals[v].end <= fusion.last]

    def rise(self, fusion: Fusion) -> int:
        """By how many bytes `fusion` costs more than it may; 0 or less if it costs nothing.

        Needed bytes must not rise at the fullest step between both nodes, so that no fusion takes what another one
        saves. Live bytes, as stored now, must not rise above the peak of their home.
        """
        window = slice(fusion.first, fusion.last + 1)
        before, after = self._left[window], self._left[window].copy()
        after[0] = False
        ends = {value: self._intervals[value] for value in fusion.reads}
        homes, needed = self._rewritten(fusion)
        self._intervals.update(ends)
        rise = needed[after].max() - self._needed[window][before].max()
        return int(max(rise, *(part[after].max() - self.live(home).max() for home, part in homes.items())))

    def fuse(self, fusion: Fusion) -> None:
        """The two nodes are one from here on."""
        window = slice(fusion.first, fusion.last + 1)
        homes, self._needed[window] = self._rewritten(fusion)
        for home, part in homes.items():
            self._homes[home][window] = part
        self._left[fusion.first] = False
        self._fused[fusion.last] = fusion

    def _rewritten(self, fusion: Fusion) -> tuple[dict[str | None, Profile], Profile]:
        """Live bytes of the homes that change, and needed bytes, at steps [first, last]. Intervals are extended."""
        first, last = fusion.first, fusion.last
        window = slice(first, last + 1)
        needed = self._needed[window] - fusion.gone.nbytes
        homes: dict[str | None, Profile] = {fusion.device: self._homes[fusion.device][window] - fusion.gone.nbytes}
        extended = self.extended(fusion)
        touched = dict.fromkeys([last, *(self._intervals[v].end - 1 for v in extended)])
        touched.pop(first, None)  # that step goes away
        for step in touched:
            needed[step - first] += self._in_place(step)
        for value in extended:
            end = self._intervals[value].end
            home = None if value.producer is None else value.producer.device
            part = homes.setdefault(home, self._homes[home][window].copy())
            part[end - first :] += value.nbytes
            for step in range(end, last + 1):
                needed[step - first] += self._fresh_bytes(value, step)
            self._intervals[value] = Interval(self._intervals[value].start, last + 1)
        if self._idle and not self._left[:first].any():  # feeds that nobody reads are live at the first step
            step = 1 + int(self._left[first + 1 : last + 1].argmax())
            num_bytes = sum(value.nbytes for value in self._idle)
            homes.setdefault(None, self._homes[None][window].copy())[step] += num_bytes
            needed[step] += num_bytes
        for step in touched:
            needed[step - first] -= self._in_place(step) if step != last else self._over(fusion)
        homes[fusion.device][last - first] += sum(value.nbytes for value in _new_copies(fusion))
        return homes, needed

    def _fresh_bytes(self, value: Value, step: int) -> int:
        """Bytes of the content of `value` that no other value holds at `step`."""
        roots = dict.fromkeys(run.root for run in self._aliases.runs(value))
        others = {other: None for root in roots for other in self._sharers[root] if other is not value}
        live = [v for v in others if self._intervals[v].start <= step < self._intervals[v].end]
        return content_bytes(self._aliases, [value, *live]) - content_bytes(self._aliases, live)

    def _in_place(self, step: int) -> int:
        """What the node at `step` may save by writing over what dies there."""
        if step in self._fused:
            return self._over(self._fused[step])
        return in_place_bytes(self._liveness, self._aliases, self._nodes[step], step)

    def _over(self, fusion: Fusion) -> int:
        """The same of a fused node: each operand of its output's shape and element width will do."""
        made, kept = fusion.made, self._liveness.kept
        for value in fusion.inputs:
            fits = value.shape == made.shape and itemsize(value.dtype) == itemsize(made.dtype)
            if fits and self._intervals[value].end == fusion.last + 1 and value not in kept:
                return made.nbytes
        return 0


def _new_copies(fusion: Fusion) -> Iterator[Value]:
    """The operands of which the first node reads copies, since another device makes them, and the last one did not."""
    for value in dict.fromkeys(fusion.reads):
        maker = None if value.producer is None else value.producer.device
        if fusion.device is not None and maker not in (None, fusion.device) and value not in fusion.others:
            yield value
