"""The runtime: the reference interpreter, and the executor with its jitted virtual machine (loaded on first use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memopt.runtime.reference import check_feeds, initial_state, run_reference

if TYPE_CHECKING:
    from memopt.runtime.executor import Executor, Measured, RunResult

__all__ = ["Executor", "Measured", "RunResult", "check_feeds", "initial_state", "run_reference"]


def __getattr__(name: str) -> Any:
    if name in ("Executor", "Measured", "RunResult"):
        from memopt.runtime import executor  # numba is loaded here, not by `import memopt`

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
