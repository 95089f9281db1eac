"""Passes, what they decided, and the pipeline that runs them.

Holds true: a graph verifies before and after every pass (in between nothing is promised); `PassResult.modified` says
exactly whether the graph or its storage changed, so that a second run of the same pass says False; every pair or value
that a pass looked at is in `decisions`, accepted or refused with a reason. memopt never imports `passes`: passes and
strategies are found by name through the entry points `memopt.passes` and `memopt.strategies`, yours too.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from memopt.errors import MemoptError, OptionError, PassError
from memopt.ir import Graph, verify

__all__ = [
    "Compound",
    "Decision",
    "Observer",
    "Pass",
    "PassResult",
    "PassSelection",
    "find_passes",
    "known_passes",
    "known_strategies",
    "leave_out_passes",
    "pass_names",
    "run_pipeline",
]

_NOT_INSTALLED = "; memopt is not installed: run `pip install -e .` in the checkout, or give passes as objects"
PASS_GROUP = "memopt.passes"
STRATEGY_GROUP = "memopt.strategies"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass decided about one value or pair of values.

    pass_name  the pass's kebab-case name        node, step  the node it concerns and its 0-based position
    subject    names of the values: (output, input) for an in-place pair, (output, lender) for reuse, (output,) where
               there is no partner
    accepted   whether the graph was edited      reason      why, in words that name the values
    bytes      the bytes that it saved, or would have      rule   the reason's name, such as "not-last-use"
    """

    pass_name: str
    node: str
    subject: tuple[str, ...]
    accepted: bool
    reason: str
    bytes: int
    step: int
    rule: str = ""

    def __str__(self) -> str:
        verdict = "accepted" if self.accepted else "refused"
        values = " over ".join(f"%{name}" for name in self.subject)
        return f"{self.pass_name}: step {self.step} {self.node}: {values} {verdict} ({self.bytes} B): {self.reason}"


@dataclass(frozen=True, slots=True)
class PassResult:
    """Whether the pass changed the graph, and all that it decided."""

    modified: bool
    decisions: list[Decision] = field(default_factory=list)


@runtime_checkable
class Pass(Protocol):
    """One optimization: a name and `run`, which edits the graph in place."""

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph) -> PassResult: ...


@runtime_checkable
class Compound(Pass, Protocol):
    """A pass that runs others: `parts` are all that it may run, `without` is the same without some of them."""

    @property
    def parts(self) -> tuple[Pass, ...]: ...

    def without(self, names: Collection[str]) -> Pass: ...


#: Called as `observer(pass, phase, seconds, graph)`; the phases of each pass are "start", "run" and "verify".
Observer = Callable[[Pass, str, float, Graph], None]

#: A strategy's or pass's name, a pass, or a sequence of those.
PassSelection = str | Pass | Sequence["str | Pass"]


def run_pipeline(graph: Graph, passes: Iterable[Pass], observer: Observer | None = None) -> list[PassResult]:
    """Run `passes` in order on `graph`, in place; returns one result a pass.

    Verifies before the first pass and after each. Raises `PassError`, naming the pass and those that ran before it;
    then the graph is as the failing pass left it, so work on `graph.copy()` if you need the original.
    """
    results: list[PassResult] = []
    ran: list[str] = []
    for one in passes:
        if not ran:
            _checked(graph, f"the graph does not verify before pass {one.name}", ran)
        _notify(observer, one, "start", 0.0, graph)
        begin = time.perf_counter()
        try:
            result = one.run(graph)
        except MemoptError as error:
            raise PassError(f"pass {one.name} failed{_after(ran)}: {error}") from error
        if not isinstance(result, PassResult):
            made = type(result).__name__
            raise PassError(f"pass {one.name} returned {made}{_after(ran)}; a pass returns a PassResult")
        middle = time.perf_counter()
        _notify(observer, one, "run", middle - begin, graph)
        _checked(graph, f"pass {one.name} left a graph that does not verify", ran)
        _notify(observer, one, "verify", time.perf_counter() - middle, graph)
        ran.append(one.name)
        results.append(result)
    return results


def find_passes(selection: PassSelection) -> tuple[Pass, ...]:
    """The passes that `selection` names: a strategy, a pass, or a sequence of names and passes.

    Raises `OptionError`, which lists the names that there are.
    """
    if isinstance(selection, str):
        return _by_name(selection)
    if isinstance(selection, Sequence):
        return tuple(one for item in selection for one in find_passes(item))
    if isinstance(selection, type) or not isinstance(selection, Pass):
        raise OptionError(f"{selection!r} is not a pass: want a name, or an object with `name` and `run(graph)`")
    return (selection,)


def pass_names(passes: Iterable[Pass]) -> tuple[str, ...]:
    """The names of `passes`, each once; a compound's parts in its place."""
    found: dict[str, None] = {}
    for one in passes:
        found |= dict.fromkeys(pass_names(one.parts) if isinstance(one, Compound) else (one.name,))
    return tuple(found)


def leave_out_passes(passes: Iterable[Pass], names: Collection[str]) -> tuple[Pass, ...]:
    """`passes` without those of these names, in compounds too."""
    left = [one for one in passes if one.name not in names]
    return tuple(one.without(names) if isinstance(one, Compound) else one for one in left)


def known_passes() -> tuple[str, ...]:
    """Names of the passes that are installed, in alphabetical order."""
    return tuple(_entries(PASS_GROUP))


def known_strategies() -> tuple[str, ...]:
    """Names of the strategies that are installed, in alphabetical order."""
    return tuple(_entries(STRATEGY_GROUP))



def _by_name(name: str) -> tuple[Pass, ...]:
    strategies = _entries(STRATEGY_GROUP)
    if name in strategies:
        return find_passes(tuple(_loaded(strategies[name])))
    passes = _entries(PASS_GROUP)
    if name in passes:
        made = _loaded(passes[name])
        return find_passes(made() if callable(made) else made)
    hint = "" if _is_installed() else _NOT_INSTALLED
    raise OptionError(
        f"there is no strategy and no pass {name!r}; strategies: {', '.join(strategies) or 'none'}; "
        f"passes: {', '.join(passes) or 'none'}{hint}"
    )


def _loaded(entry: importlib.metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        where = f"entry point {entry.name} = {entry.value} of group {entry.group}"
        raise OptionError(f"{where} cannot be loaded: {error}") from error


def _entries(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """name -> entry point, sorted by name; of two with one name the first found counts."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=group):
        found.setdefault(entry.name, entry)
    return dict(sorted(found.items()))


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution("memopt")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _checked(graph: Graph, message: str, ran: Sequence[str]) -> None:
    try:
        verify(graph)
    except MemoptError as error:
        raise PassError(f"{message}{_after(ran)}: {error}") from error


def _after(ran: Sequence[str]) -> str:
    return f" (after {', '.join(ran)})" if ran else " (no pass ran before it)"


def _notify(observer: Observer | None, one: Pass, phase: str, seconds: float, graph: Graph) -> None:
    if observer is not None:
        observer(one, phase, seconds, graph)
