"""Outputs of a run: which are written straight into the caller's arrays, and which are copied out at the end.

Holds true: the array in which an output is made, in a plan whose program gives it a space of its own, is the caller's
(`out=`) or a fresh one, and nothing else lies in its memory. An unvalidated plan writes no array of the caller's: it is
copied out all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import ExecutionError
from memopt.lowering.caller import COPIED_OUT
from memopt.plan import MemoryPlan
from memopt.runtime.feeds import is_plain, why_not_plain
from memopt.runtime.reference import is_dtype

__all__ = ["Outs"]

Array = NDArray[Any]
_Key = tuple[str, str]
#: How hard to look whether two arrays that are not contiguous share an element.
_WORK = 10_000


class Outs:
    """The outputs of one plan.

    direct    output -> its own space        reasons   output -> why it is always copied out, for the others
    returned  output -> the feed whose bytes it has at the end, all of them
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self._values = {value.name: value for value in plan.graph.outputs}
        self.direct: dict[str, _Key] = {}
        self.reasons: dict[str, str] = {}
        self.returned: dict[str, str] = {}
        told = {d.subject[0]: d.reason.partition(": ")[2] for d in plan.decisions if d.rule == COPIED_OUT}
        feeds = {result.operand.buffer: result for result in plan.program.feeds}
        for result in plan.program.results:
            buffer, slot = plan.program.buffers[result.operand.buffer], plan.slots[result.operand.buffer]
            if buffer.space == "output" and plan.is_validated:
                self.direct[result.name] = slot.device, slot.space
                continue
            reason = told.get(result.name, "outputs='arena'")
            self.reasons[result.name] = "the plan was not validated" if buffer.space == "output" else reason
            feed, value = feeds.get(buffer.id), self._values.get(result.name)
            if feed is not None and value is not None and is_plain(result.operand, value.dtype):
                whole = plan.graph.value(feed.name).nbytes == value.nbytes
                if whole and result.operand.offset == feed.operand.offset:
                    self.returned[result.name] = feed.name

    def check(self, out: Mapping[str, Any]) -> None:
        """Raise `ExecutionError` where arrays do not fit their outputs, or share memory with each other."""
        for name, array in out.items():
            value = self._values.get(name)
            if value is None:
                there = ", ".join(self._values) or "none"
                raise ExecutionError(f"out={name!r} is not an output; the outputs are {there}")
            if not isinstance(array, np.ndarray) or array.shape != value.shape or not is_dtype(array, value.dtype):
                raise ExecutionError(f"out={name!r} must be an array like {value.type}")
            if not array.flags.writeable:
                raise ExecutionError(f"out={name!r} is read-only")
        for (a, first), (b, second) in combinations(out.items(), 2):
            if _share(first, second):
                raise ExecutionError(f"out={a!r} and out={b!r} share memory: give each output an array of its own")

    def made(self, out: Mapping[str, Array]) -> dict[str, Array]:
        """output -> the array in which a run makes it: that of `out`, or a fresh one. The others are copied out."""
        found: dict[str, Array] = {}
        for name in self.direct:
            array, value = out.get(name), self._values[name]
            if not self.why_copied(name, array):
                found[name] = np.empty(value.shape, value.dtype) if array is None else array
        return found

    def why_copied(self, name: str, array: Array | None) -> str:
        """Why an output that is to be in `array` (None: anywhere) is copied out ("": it is made there)."""
        reason = self.reasons.get(name, "")
        return reason or ("" if array is None else why_not_plain(array))


def _share(a: Array, b: Array) -> bool:
    """Whether two arrays have a byte in common; if in doubt, yes."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type] # the stubs know two efforts of all
    except np.exceptions.TooHardError:
        return True
