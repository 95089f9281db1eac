"""The walk of the cross-op reuse passes: an output takes a buffer whose tenants are all dead.

Holds true: one verdict for every output of every node. A buffer is taken only if it is dead before the node's step,
large enough, of the same home, and if holding it, at its full size, from its death to the borrower's end leaves the
home's peak where it is; of those the smallest is taken, and among equals the one that died last. Every merge only adds
live bytes, in the gap, and only uses buffers up, so a second walk takes nothing.

What it adds to a plan is nothing: lowering frees buffers between tenants, and packing reuses any dead bytes, not whole
buffers of one size. It matters where nobody packs, as in Fluid.

O(n) NumPy work for each of n outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from memopt.analysis.liveness import updated_value
from memopt.analysis.occupancy import Occupancy
from memopt.analysis.sharing import Reason, Verdict
from memopt.ir import Buffer, Graph, Node, Value

__all__ = ["ReuseRecord", "borrower_refusal", "walk_reuse"]

#: (node, step, output, the lender's last tenant or None, verdict)
ReuseRecord = tuple[Node, int, Value, Value | None, Verdict]
#: A style's edit: let the value have the dead buffer's bytes from 0 on; False if this style cannot.
Edit = Callable[[Occupancy, Value, Buffer], bool]


def walk_reuse(graph: Graph, edit: Edit) -> list[ReuseRecord]:
    """Let outputs take dead buffers, in the order of nodes; a record for every output."""
    occupancy = Occupancy(graph)
    pool = _Pool(occupancy)
    records: list[ReuseRecord] = []
    for step, node in enumerate(graph.nodes):
        pool.advance(step)
        for _, output in node.real_outputs:
            refusal = borrower_refusal(occupancy, output)
            if refusal is not None:
                records.append((node, step, output, None, refusal))
                continue
            lender, verdict = pool.choose(node, step, output)
            last = None if lender is None else occupancy.tenants(lender)[-1].value
            if lender is not None and verdict.accepted:
                moved = graph.storage.buffer(output)
                if edit(occupancy, output, lender):
                    pool.lend(lender, moved)
                else:
                    text = f"buffer {lender.name} has no variable at the place of %{output.name}"
                    verdict = Verdict(False, Reason.OFFSET_DIFFERS, text, output.nbytes)
            records.append((node, step, output, last, verdict))
    return records


def borrower_refusal(occupancy: Occupancy, output: Value) -> Verdict | None:
    """Why `output` cannot borrow at all, or None."""
    if updated_value(output) is not None:
        text = f"%{output.name} is an update: it has its variable by definition"
        return Verdict(False, Reason.UPDATE_OUTPUT, text, output.nbytes)
    if output.name in occupancy.graph.excluded:
        return Verdict(False, Reason.EXCLUDED, f"%{output.name} is left out by request", output.nbytes)
    if output.nbytes == 0:
        return Verdict(False, Reason.NOTHING_TO_SAVE, f"%{output.name} has no bytes", 0)
    if not occupancy.begins(output):
        buffer = occupancy.graph.storage.buffer(output).name
        return Verdict(False, Reason.ALREADY_BORROWED, f"%{output.name} lies in buffer {buffer} already", output.nbytes)
    return None


class _Pool:
    """All buffers, by size; which of them are dead, since when, and which home they have."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        buffers = occupancy.graph.storage.buffers
        order = np.argsort([occupancy.size(b) for b in buffers], kind="stable")
        self._buffers = [buffers[i] for i in order]
        self._index = {buffer: i for i, buffer in enumerate(self._buffers)}
        self._size: NDArray[np.int64] = np.array([occupancy.size(b) for b in self._buffers], np.int64)
        self._end: NDArray[np.int64] = np.array([occupancy.span(b).end for b in self._buffers], np.int64)
        self._dead = np.zeros(len(buffers), np.bool_)
        self._home: NDArray[np.int64] = np.array([self._number(occupancy.home(b)) for b in self._buffers], np.int64)
        kept, excluded = occupancy.liveness.kept, occupancy.graph.excluded
        self._dying: dict[int, list[int]] = {}
        for i, buffer in enumerate(self._buffers):
            if not occupancy.is_mixed(buffer) and not any(
                t.value in kept or t.value.name in excluded for t in occupancy.tenants(buffer)
            ):
                self._dying.setdefault(int(self._end[i]), []).append(i)

    def advance(self, step: int) -> None:
        """Admit the buffers that died before `step`."""
        for i in self._dying.pop(step, ()):
            self._dead[i] = True

    def choose(self, node: Node, step: int, output: Value) -> tuple[Buffer | None, Verdict]:
        """The best dead buffer for `output`, and whether to take it."""
        moving = self._occupancy.graph.storage.buffer(output)
        num_bytes = self._occupancy.size(moving)
        if self._occupancy.is_mixed(moving):
            text = f"the buffer of %{output.name} has tenants on several devices"
            return None, Verdict(False, Reason.DIFFERENT_DEVICE, text, output.nbytes)
        low = int(np.searchsorted(self._size, num_bytes))
        fits = low + np.flatnonzero(self._dead[low:])
        if not fits.size:
            text = f"no dead buffer has the {num_bytes} B of %{output.name}"
            return None, Verdict(False, Reason.NO_CANDIDATE, text, output.nbytes)
        here = fits[self._home[fits] == self._number(node.device)]
        if not here.size:
            text = f"the dead buffers that would hold %{output.name} are not on its device"
            return None, Verdict(False, Reason.DIFFERENT_DEVICE, text, output.nbytes)
        free = here[self._size[here] <= self._room(here, step, moving)]
        if not free.size:
            best = self._buffers[here[0]]
            rise = self._occupancy.rise(moving, best, 0)
            text = f"holding buffer {best.name} for %{output.name} raises the peak by {rise} B"
            return best, Verdict(False, Reason.RAISES_PEAK, text, output.nbytes)
        tight = free[self._size[free] == self._size[free[0]]]
        best = self._buffers[tight[np.argmax(self._end[tight])]]
        since = self._occupancy.span(best).end
        text = f"buffer {best.name} is dead since step {since} and holds %{output.name}, as packing would find too"
        return best, Verdict(True, Reason.REUSE, text, num_bytes)

    def lend(self, lender: Buffer, moved: Buffer) -> None:
        """`moved` is now in `lender`, which is alive until its new end."""
        i, gone = self._index[lender], self._index.pop(moved)
        self._dead[i] = False
        old_end = int(self._end[gone])
        self._end[i] = self._occupancy.span(lender).end
        waiting = self._dying.get(old_end, [])
        if gone in waiting:
            waiting[waiting.index(gone)] = i

    def _room(self, fits: NDArray[np.intp], step: int, moving: Buffer) -> NDArray[np.int64]:
        """How large each buffer may be for the peak to stay: in the gap, and above the borrower's own bytes."""
        occupancy = self._occupancy
        home = occupancy.home(moving)
        profile, peak = occupancy.profile(home), occupancy.peak(home)
        earliest = int(self._end[fits].min())
        gap = np.zeros(step - earliest + 1, np.int64)  # gap[i] = the most live bytes in steps [earliest + i, step)
        gap[:-1] = np.maximum.accumulate(profile[earliest:step][::-1])[::-1]
        in_gap = peak - gap[self._end[fits] - earliest]
        in_gap[self._end[fits] == step] = np.iinfo(np.int64).max
        during = occupancy.size(moving) + peak - int(profile[step : occupancy.span(moving).end].max())
        return np.minimum(in_gap, during)

    def _number(self, home: str | None) -> int:
        return self._occupancy.homes.index(home)
