"""Every solver against the slow twin, and each property that the docstrings promise."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.errors import OptionError, PackingInputError
from memopt.packing import (
    PackingBuffer,
    PackingProblem,
    best_fit,
    first_fit,
    lower_bound,
    pack,
    pack_arrays,
    validate_packing,
)
from memopt.packing.heuristics import Planner, first_fit_by_size
from memopt.packing.improve import Climb
from memopt.packing.probe import FAILED, FOUND, Hunt
from memopt.packing.table import Ints, Part, Table
from tests.packing.problems import fits, guillotine, live_sums, optimum, pins_clash, problems

FOREVER = 1e18


def by_id(problem: PackingProblem, table: Table, offsets: Ints) -> dict[str, int]:
    found = {b.id: b.offset or 0 for b in problem.buffers}
    return found | {problem.buffers[i].id: int(at) for i, at in zip(table.index, offsets, strict=True)}


@given(problems())
@settings(max_examples=60)
def test_prove_finds_the_optimum_of_the_slow_twin(problem: PackingProblem) -> None:
    plan = pack(problem, effort="prove")
    if pins_clash(problem):
        assert (plan.status, plan.offsets, len(plan.core)) == ("infeasible", {}, 2)
        return
    validate_packing(problem, plan.offsets)
    assert (plan.status, plan.height) == ("optimal", optimum(problem))
    assert lower_bound(problem) <= plan.height == problem.height(plan.offsets)


@given(problems())
@settings(max_examples=60)
def test_prove_refuses_one_byte_less_with_a_core_that_does_not_fit_either(problem: PackingProblem) -> None:
    if pins_clash(problem) or not (height := optimum(problem)):
        return
    plan = pack(problem, capacity=height - 1, effort="prove")
    assert plan.status == "infeasible"
    assert not plan.fits
    assert plan.proof
    assert plan.core
    assert not fits(problem.subset(plan.core), height - 1)
    assert pack(problem, capacity=height, effort="prove").fits


@given(problems())
@settings(max_examples=60)
def test_every_planner_is_valid_and_the_efforts_are_not_worse_than_first_fit(problem: PackingProblem) -> None:
    if pins_clash(problem):
        return
    ceiling = problem.height(first_fit(problem))
    for solver in (first_fit, best_fit):
        validate_packing(problem, solver(problem))
    for effort in ("fast", "best"):
        plan = pack(problem, effort=effort, time_limit=0.05)
        validate_packing(problem, plan.offsets, capacity=plan.height)
        assert plan.lower_bound <= plan.height <= ceiling
        assert plan.status in ("optimal", "feasible")


@given(problems())
@settings(max_examples=60)
def test_the_compiled_planners_agree_with_their_twins(problem: PackingProblem) -> None:
    table = Table.of(problem)
    if pins_clash(problem) or not table.size.size:
        return
    planner = Planner(table, seed=3)
    for number in range(16):
        found = planner.attempt(number, 10**9)
        assert found is not None
        offsets = by_id(problem, table, found[1])
        validate_packing(problem, offsets)
        assert problem.height(offsets) == found[0]
    assert planner.attempt(0, lower_bound(problem) - 1) is None
    twin = first_fit_by_size(table, 10**9)
    assert twin is not None
    assert by_id(problem, table, twin[1]) == first_fit(problem)


@given(problems(max_buffers=6))
@settings(max_examples=30)
def test_every_probe_decides_as_the_slow_twin(problem: PackingProblem) -> None:
    table = Table.of(problem)
    if pins_clash(problem) or not table.size.size:
        return
    height = optimum(problem)
    hunt = Hunt(Part.of(table), seed=0, workers=1)
    for attempt in range(len(hunt.keys) * len(hunt.rules)):
        assert hunt.probe(attempt, height - 1).run(10**6, FOREVER) == FAILED
        probe = hunt.probe(attempt, height)
        assert probe.run(10**6, FOREVER) == FOUND
        validate_packing(problem, by_id(problem, table, probe.offsets()), capacity=height)


def test_a_paused_probe_goes_on_to_the_same_end() -> None:
    part = Part.of(Table.of(guillotine(60, 3)))
    hunt = Hunt(part, seed=0, workers=1)
    whole, sliced = hunt.probe(2, 10**6), hunt.probe(2, 10**6)
    status = whole.run(3000, FOREVER)
    for _ in range(300):
        last = sliced.run(10, FOREVER)
        if last:
            break
    assert (last, sliced.nodes) == (status, whole.nodes)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hunt_has_one_result_whatever_the_threads_do(workers: int) -> None:
    results = []
    for _ in range(3):
        hunt = Hunt(Part.of(Table.of(guillotine(80, 1))), seed=5, workers=workers)
        while True:
            status, offsets = hunt.round(10**6, FOREVER)
            if offsets is not None:
                break
        results.append((status, hunt.attempt, offsets.tolist()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("num", "seed"), [(10, 0), (40, 1), (100, 2), (200, 3)])
def test_best_reaches_the_known_optimum_of_guillotine_cuts(num: int, seed: int) -> None:
    plan = pack(guillotine(num, seed), effort="best", time_limit=30)
    validate_packing(plan.problem, plan.offsets)
    assert (plan.height, plan.lower_bound, plan.status) == (10**6, 10**6, "optimal")


def test_fast_is_far_better_than_no_sharing_and_near_the_bound() -> None:
    problem = live_sums(3000, 1)
    plan = pack(problem)
    validate_packing(problem, plan.offsets)
    assert plan.ratio < 1.1
    assert plan.height < sum(b.size for b in problem.buffers) / 50


def test_the_same_effort_and_seed_give_the_same_plan() -> None:
    problem = live_sums(500, 2)
    assert pack(problem).offsets == pack(problem).offsets
    hard = guillotine(60, 4)
    plans = [pack(hard, effort="best", time_limit=60, seed=7) for _ in range(2)]
    assert plans[0].offsets == plans[1].offsets


def test_alignment_is_kept_and_its_bound_is_sharp() -> None:
    problem = live_sums(300, 3, alignment=64)
    plan = pack(problem, effort="best", time_limit=2)
    validate_packing(problem, plan.offsets)
    assert all(at % 64 == 0 for at in plan.offsets.values())
    tower = PackingProblem(tuple(PackingBuffer(str(i), 100, 0, 1, 64) for i in range(4)))
    assert lower_bound(tower) == 3 * 128 + 100 == pack(tower).height


def test_parts_that_share_no_time_are_closed_apart() -> None:
    left, right = guillotine(50, 1), guillotine(50, 2)
    later = tuple(PackingBuffer(f"r{b.id}", b.size, b.start + 10**7, b.end + 10**7) for b in right.buffers)
    problem = PackingProblem((*left.buffers, *later))
    parts = Table.of(problem).parts()
    assert len(parts) >= 2
    assert sorted(np.concatenate(parts)) == list(range(100))
    assert any(parts[0] < 50) is not any(parts[-1] < 50)
    plan = pack(problem, effort="best", time_limit=30)
    validate_packing(problem, plan.offsets)
    assert plan.height == 10**6
    assert pack(problem, capacity=10**6, effort="prove", time_limit=30).status == "optimal"


def test_twelve_buffers_that_miss_by_one_byte_are_infeasible_with_the_proof() -> None:
    """Six bytes are live at all times, and yet they do not fit into six: only a search can tell."""
    rows = (
        (6, 0, 1),
        (1, 1, 2),
        (5, 1, 3),
        (2, 3, 4),
        (1, 2, 5),
        (1, 4, 5),
        (2, 5, 6),
        (3, 3, 6),
        (5, 6, 7),
        (1, 4, 8),
    )
    rows = (*rows, (2, 7, 8), (3, 7, 8))
    problem = PackingProblem(tuple(PackingBuffer(str(i), *row) for i, row in enumerate(rows)))
    assert (lower_bound(problem), fits(problem, 6), fits(problem, 7)) == (6, False, True)
    plan = pack(problem, capacity=6, effort="prove")
    assert (plan.status, plan.height) == ("infeasible", 7)
    assert "search" in plan.proof
    assert len(plan.core) == 7
    assert not fits(problem.subset(plan.core), 6)
    for effort in ("best", "prove"):
        plan = pack(problem, effort=effort)
        assert (plan.status, plan.height, plan.lower_bound) == ("optimal", 7, 7)
        assert "search" in plan.proof


def test_too_many_live_bytes_are_infeasible_and_the_core_is_small() -> None:
    problem = PackingProblem(tuple(PackingBuffer(str(i), 10 + i, 0, 5 + i) for i in range(8)), capacity=30)
    plan = pack(problem, effort="prove")
    assert (plan.status, plan.core) == ("infeasible", ("6", "7"))
    assert "108 bytes or more" in plan.proof
    fast = pack(problem)
    assert (fast.status, fast.core) == ("infeasible", ("6", "7"))


def test_when_time_is_over_the_answer_is_unknown() -> None:
    problem = guillotine(300, 9)
    plan = pack(problem, capacity=10**6, effort="prove", time_limit=0)
    validate_packing(problem, plan.offsets)
    assert plan.status in ("unknown", "optimal")
    assert plan.core == ()


def test_time_limits_hold() -> None:
    problem = guillotine(3000, 1)
    pack(guillotine(30, 1), effort="best")
    began = time.perf_counter()
    plan = pack(problem, effort="best", time_limit=1.0)
    assert time.perf_counter() - began < 6
    validate_packing(problem, plan.offsets)


def test_a_climb_can_raise_the_bound_to_the_optimum() -> None:
    """Three buffers in a ring of time: two live at once, yet height 3."""
    rows = (("a", 1, 0, 2), ("b", 1, 1, 3), ("c", 2, 2, 4), ("d", 1, 3, 5), ("e", 2, 0, 1), ("f", 2, 4, 5))
    problem = PackingProblem(tuple(PackingBuffer(*row) for row in rows))
    plan = pack(problem, effort="prove")
    assert plan.status == "optimal"
    assert plan.height == optimum(problem)
    table = Table.of(problem)
    climb = Climb(table, (100, np.zeros(6, np.int64)), plan.lower_bound, 0)
    climb.run(time.perf_counter() + 20, thorough=True)
    assert climb.best[0] == plan.height


def test_sizes_up_to_2_62_work_and_what_does_not_fit_63_bits_is_an_error() -> None:
    big = 2**62
    apart = PackingProblem((PackingBuffer("a", big, 0, 1), PackingBuffer("b", big, 1, 2), PackingBuffer("c", 7, 0, 2)))
    for effort in ("fast", "best", "prove"):
        plan = pack(apart, effort=effort)
        validate_packing(apart, plan.offsets)
        assert (plan.height, plan.status) == (big + 7, "optimal")
    together = PackingProblem((PackingBuffer("a", big, 0, 2), PackingBuffer("b", big, 1, 2)))
    with pytest.raises(PackingInputError, match="overflow"):
        pack(together)
    just = PackingProblem((PackingBuffer("a", big, 0, 2), PackingBuffer("b", big - 1, 1, 2)))
    assert pack(just, effort="best").height == 2**63 - 1
    with pytest.raises(PackingInputError, match="2\\^62"):
        PackingBuffer("a", big + 1, 0, 1)


def test_many_huge_buffers_do_not_wrap_in_the_compiled_planners() -> None:
    size = 2**53
    problem = PackingProblem(tuple(PackingBuffer(str(i), size, i, i + 400, 2) for i in range(900)))
    plan = pack(problem)
    validate_packing(problem, plan.offsets)
    assert plan.height == 400 * size


def test_arrays_are_taken() -> None:
    plan = pack_arrays(np.array([0, 1, 2]), np.array([2, 3, 4]), np.array([8, 16, 8]), alignment=8, effort="best")
    assert plan.height == 24
    assert set(plan.offsets) == {"0", "1", "2"}
    assert pack_arrays([], [], []).height == 0


@given(st.integers(0, 5))
@settings(max_examples=5)
def test_buffers_without_bytes_conflict_with_nobody(num: int) -> None:
    empty = tuple(PackingBuffer(f"z{i}", 0, 0, 9, 64) for i in range(num))
    covered = PackingBuffer("c", 50, 2, 4, gaps=((2, 4),))
    problem = PackingProblem((*empty, PackingBuffer("a", 5, 0, 9), covered))
    for effort in ("fast", "best", "prove"):
        plan = pack(problem, effort=effort)
        assert (plan.height, plan.status) == (5, "optimal")
        assert set(plan.offsets) == {b.id for b in problem.buffers}


def test_a_gap_is_used() -> None:
    problem = PackingProblem((PackingBuffer("a", 4, 0, 9, gaps=((3, 6),)), PackingBuffer("b", 4, 3, 6)))
    assert pack(problem).height == 4


def test_a_watcher_hears_of_the_height() -> None:
    heard: list[tuple[int, int]] = []
    plan = pack(guillotine(60, 6), effort="best", watch=lambda height, bound: heard.append((height, bound)))
    assert heard
    assert min(height for height, _ in heard) >= plan.lower_bound


def test_wrong_options_are_refused() -> None:
    problem = PackingProblem((PackingBuffer("a", 4, 0, 9),))
    with pytest.raises(OptionError, match="effort"):
        pack(problem, effort="most")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="time_limit"):
        pack(problem, time_limit=float("nan"))
    with pytest.raises(PackingInputError, match="capacity"):
        pack(problem, capacity=-1)
    with pytest.raises(PackingInputError, match="twice"):
        PackingProblem((PackingBuffer("a", 4, 0, 9), PackingBuffer("a", 4, 0, 9)))


def test_a_capacity_beyond_the_compiled_range_is_no_trouble() -> None:
    problem = PackingProblem((PackingBuffer("a", 2**61, 0, 2), PackingBuffer("b", 3, 1, 3, 2)))
    plan = pack(problem, capacity=2**63 - 1, effort="prove")
    assert plan.fits
    validate_packing(problem, plan.offsets)
