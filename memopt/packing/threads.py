"""Two worker threads for what releases the GIL. Callers merge results in a fixed order, so timing never shows."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["num_workers", "spread"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def num_workers() -> int:
    """How many threads pay: two, or one on a machine with a single core."""
    return min(2, os.cpu_count() or 1)


def spread(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """`work` of each item, in the order of the items, on the worker threads."""
    return list(_pool(os.getpid()).map(work, items))


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process (a forked child has none of its parent's)."""
    return ThreadPoolExecutor(2, thread_name_prefix=f"memopt-pack-{process}")
