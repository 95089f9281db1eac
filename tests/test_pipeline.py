from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

import pytest

import passes
from memopt.errors import OptionError, PassError, VerifyError
from memopt.ir import Graph, parse
from memopt.pipeline import (
    Decision,
    Pass,
    PassResult,
    find_passes,
    known_passes,
    known_strategies,
    run_pipeline,
)

TEXT = 'graph "g" { input %x: f32[4] %a = Abs(%x) %b = Neg(%a) output %b }'


@dataclass(frozen=True)
class Breaks:
    """Binds a value to two variables' worth of nothing."""

    name: str = "breaks"

    def run(self, graph: Graph) -> PassResult:
        graph.storage.forget(graph.value("a"))
        return PassResult(True)


@dataclass(frozen=True)
class Raises:
    name: str = "raises"

    def run(self, graph: Graph) -> PassResult:
        raise VerifyError("no luck")


@dataclass(frozen=True)
class Forgets:
    name: str = "forgets"

    def run(self, graph: Graph) -> PassResult:
        return None  # type: ignore[return-value]


class TestRun:
    def test_results_are_in_order(self):
        results = run_pipeline(parse(TEXT), passes.SHARE)
        assert [result.modified for result in results] == [True, False]
        assert {d.pass_name for d in results[0].decisions} == {"inplace-share"}

    def test_the_observer_sees_every_phase(self):
        seen = []
        run_pipeline(parse(TEXT), passes.SHARE, lambda one, phase, seconds, _: seen.append((one.name, phase, seconds)))
        names = [one.name for one in passes.SHARE]
        assert [(name, phase) for name, phase, _ in seen] == [(n, p) for n in names for p in ("start", "run", "verify")]
        assert all(seconds >= 0 for _, _, seconds in seen)

    def test_a_broken_graph_is_refused_before_the_first_pass(self):
        graph = parse(TEXT)
        Breaks().run(graph)
        with pytest.raises(PassError, match=r"not verify before pass inplace-share \(no pass ran before it\): %a is"):
            run_pipeline(graph, passes.SHARE)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (Breaks(), "pass breaks left a graph that does not verify"),
            (Raises(), "pass raises failed"),
            (Forgets(), "pass forgets returned NoneType"),
        ],
    )
    def test_a_failure_names_the_pass_and_those_before(self, bad, message):
        with pytest.raises(PassError) as caught:
            run_pipeline(parse(TEXT), [*passes.SHARE, bad])
        assert str(caught.value).startswith(f"{message} (after inplace-share, reuse-share)")

    def test_a_decision_reads_as_a_sentence(self):
        decision = Decision("inplace-share", "b", ("b", "a"), True, "%a dies here", 16, 1, "in-place")
        assert str(decision) == "inplace-share: step 1 b: %b over %a accepted (16 B): %a dies here"


class TestFind:
    @pytest.fixture(autouse=True)
    def entries(self, monkeypatch):
        """The entry points of pyproject, and a stranger's, whether or not memopt is installed."""
        table = {
            "memopt.passes": [("inplace-share", "passes:InplaceShare"), ("mine", "tests.test_pipeline:Raises")],
            "memopt.strategies": [("none", "passes:NONE"), ("share", "passes:SHARE"), ("lost", "passes:NOWHERE")],
        }
        monkeypatch.setattr(
            importlib.metadata,
            "entry_points",
            lambda *, group: [importlib.metadata.EntryPoint(n, v, group) for n, v in table[group]],
        )

    def test_strategies_and_passes_are_found_by_name(self):
        assert find_passes("share") == passes.SHARE
        assert find_passes("none") == ()
        assert find_passes("inplace-share") == (passes.InplaceShare(),)
        assert find_passes("mine") == (Raises(),)

    def test_a_list_mixes_names_and_passes(self):
        fluid = passes.InplaceRename(fluid_rules=True)
        assert find_passes([fluid, "share"]) == (fluid, *passes.SHARE)

    def test_what_there_is(self):
        assert known_passes() == ("inplace-share", "mine")
        assert known_strategies() == ("lost", "none", "share")

    def test_unknown_names_list_what_there_is(self):
        with pytest.raises(OptionError, match="'shore'; strategies: lost, none, share; passes: inplace-share, mine"):
            find_passes("shore")

    def test_an_entry_that_leads_nowhere(self):
        with pytest.raises(OptionError, match=r"entry point lost = passes:NOWHERE of group memopt\.strategies cannot"):
            find_passes("lost")

    @pytest.mark.parametrize("odd", [7, passes.InplaceShare, None])
    def test_what_is_no_pass(self, odd):
        with pytest.raises(OptionError, match="is not a pass"):
            find_passes(odd)


def test_a_checkout_that_is_not_installed_says_so(monkeypatch):
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [])
    with pytest.raises(OptionError, match=r"run `pip install -e .` in the checkout"):
        find_passes("share")


@pytest.mark.parametrize("one", [*passes.RENAME, *passes.SHARE], ids=lambda one: one.name)
def test_ours_are_passes(one):
    assert isinstance(one, Pass)
    assert one == type(one)()
    assert one.name == one.name.lower().replace("_", "-")
