"""Feeds in a run: which arrays of the caller's are used in place, which are copied in and why, which are consumed.

Holds true: only a plan that the validator has accepted gets at the caller's arrays. Of those, a feed that no
instruction writes is only read; a donated one that the plan overwrites is then *consumed*. What is overwritten in place
shares no memory with anything else that the run reads or writes, but for an output that the caller wants just there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import FeedError
from memopt.lowering import Operand
from memopt.ops import DEFAULT_LAYOUT
from memopt.plan import MemoryPlan
from memopt.runtime.checksum import checksum
from memopt.runtime.memory import Region
from memopt.runtime.uses import FeedUse, feed_uses

__all__ = ["CONSUMED", "Feed", "Feeds", "is_plain", "same_bytes", "why_not_plain"]

Array = NDArray[Any]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed of a plan: its space, what the plan does to it, and whether the space is all its own."""

    name: str
    key: _Key
    operand: Operand
    use: FeedUse
    is_whole: bool


class Feeds:
    """The feeds of one plan; `params` are arrays that are used in place besides."""

    def __init__(self, plan: MemoryPlan, regions: Mapping[_Key, Region], params: Mapping[str, Array]) -> None:
        self._validated, self._params = plan.is_validated, params
        uses = feed_uses(plan) if plan.is_validated else {}
        self._donated = frozenset(plan.graph.donated)
        self.entries: list[Feed] = []
        for result in plan.program.feeds:
            slot, value = plan.slots[result.operand.buffer], plan.graph.value(result.name)
            key = slot.device, slot.space
            first = slot.offset + result.operand.offset == 0
            whole = first and regions[key].data.size == value.nbytes and is_plain(result.operand, value.dtype)
            self.entries.append(Feed(result.name, key, result.operand, uses.get(result.name, FeedUse()), whole))

    def why_copied(
        self, arrays: Mapping[str, Array], out: Mapping[str, Array], returned: Mapping[str, str], copy: bool
    ) -> dict[str, str]:
        """feed -> why its array is copied in ("": it is used in place).

        `out` are the arrays to be filled; `returned` says which output lies in which feed's bytes at the end.
        """
        reasons = {feed.name: self._why_copied(feed, arrays[feed.name], copy) for feed in self.entries}
        for name, reason in reasons.items():
            for output, target in out.items() if not reason else ():
                stays = returned.get(output) == name and same_bytes(arrays[name], target)
                if not stays and np.may_share_memory(arrays[name], target):
                    reasons[name] = f"it shares memory with out={output!r}"
        for feed in self.entries:
            if feed.use.taken_by and not reasons[feed.name]:
                others = {f"feed %{name}": arrays[name] for name, why in reasons.items() if not why}
                others |= {f"parameter %{name}": array for name, array in self._params.items()}
                del others[f"feed %{feed.name}"]
                reasons[feed.name] = _sharing(arrays[feed.name], others)
        return reasons

    def _why_copied(self, feed: Feed, array: Array, copy: bool) -> str:
        """Why the feed cannot be used in place, whatever else is fed."""
        if not self._validated:
            return "the plan was not validated"
        if copy:
            return "copy_feeds=True"
        if not feed.is_whole:
            return "its space in the plan is not all its own"
        why = why_not_plain(array)
        if why or not feed.use.written:
            return why
        if feed.use.taken_by and feed.name not in self._donated:
            return f"%{feed.use.taken_by} is written over it"
        return "" if array.flags.writeable else "it is read-only, and the plan writes its bytes"


def is_plain(operand: Operand, dtype: str) -> bool:
    """Whether bytes lie as an array of `dtype` has them: in logical order, without gaps."""
    return operand.placement.dtype == dtype and operand.placement.layout == DEFAULT_LAYOUT and operand.strides is None


def why_not_plain(array: Array) -> str:
    """Why kernels cannot work on the array's own bytes ("": they can)."""
    if not array.flags.c_contiguous:
        return "it is not C-contiguous"
    if not array.dtype.isnative:
        return "its byte order is not the machine's"
    if array.ctypes.data % array.itemsize:
        return "it is not aligned to its items"
    return ""


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape are the very same elements."""
    same = a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes and a.dtype == b.dtype
    return same and not why_not_plain(a) and not why_not_plain(b)


def _sharing(array: Array, others: Mapping[str, Array]) -> str:
    """With whom `array` shares memory, by the addresses of the first and last bytes ("": with nobody)."""
    for name, other in others.items():
        if np.may_share_memory(array, other):
            return f"it shares memory with {name}"
    return ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one consumed array: who owns the memory, its bytes after the run, and by whom they are."""

    owner: weakref.ref[Array]
    checksum: int
    taken_by: str


@dataclass(slots=True)
class _Consumed:
    """Arrays that runs have overwritten, by their memory; until it is refilled or gone."""

    _entries: dict[tuple[int, int], _Entry] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, array: Array, taken_by: str) -> None:
        """A run has overwritten `array` (contiguous) with `taken_by`, and other values maybe."""
        entry = _Entry(weakref.ref(_owner(array)), checksum(array), taken_by)
        with self._lock:
            for key in [key for key, old in self._entries.items() if old.owner() is None]:
                del self._entries[key]
            if array.nbytes:
                self._entries[array.ctypes.data, array.nbytes] = entry

    def check(self, feeds: Iterable[tuple[str, Array]]) -> None:
        """Raise `FeedError` if one of `feeds` (name, array) is as a run has left it."""
        if not self._entries:
            return
        for name, array in feeds:
            key = array.ctypes.data, array.nbytes
            entry = self._entries.get(key)
            if entry is None or not array.flags.c_contiguous:
                continue
            if entry.owner() is _owner(array) and checksum(array) == entry.checksum:
                raise FeedError(
                    f"feed {name!r} is an array that an earlier run has consumed: it was donated, "
                    f"%{entry.taken_by} was written over it, and nobody has refilled it since; refill it before each "
                    "run, or keep it with run(..., copy_feeds=True)"
                )
            with self._lock:
                self._entries.pop(key, None)


def _owner(array: Array) -> Array:
    """The array that owns the memory, as far as NumPy knows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


#: All consumed arrays of the process: one that is fed to another plan is garbage there too.
CONSUMED = _Consumed()
