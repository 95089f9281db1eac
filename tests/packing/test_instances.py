"""The public instances: skipped where the data is absent."""

from __future__ import annotations

import pytest

from memopt.packing import pack, validate_packing
from tests.packing.problems import instance, live_sums

HARD = ("A", "B", "C", "D", "E", "G", "H", "I", "K")


@pytest.mark.parametrize(
    ("name", "height"), [("deep_speech", 100352), ("person_detection", 64512), ("G_1", 3030937746)]
)
def test_fast_is_optimal_on_the_easy_ones(name: str, height: int) -> None:
    plan = pack(instance(name))
    validate_packing(plan.problem, plan.offsets)
    assert (plan.height, plan.status) == (height, "optimal")


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_the_challenging_ones_are_solved_at_their_capacity(name: str) -> None:
    plan = pack(
        instance(f"{name}.1048576"), capacity=1039360 if name == "C" else 1048576, effort="prove", time_limit=60
    )
    validate_packing(plan.problem, plan.offsets, capacity=1048576)
    assert plan.fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "slack"), [("resnet50", 0), ("bert_large", 196), ("S_1", 2_697_544), ("pangu_2.6B", 27_650_498)]
)
def test_traces_of_training_are_packed_to_the_bound(name: str, slack: int) -> None:
    plan = pack(instance(name), effort="best", time_limit=10)
    validate_packing(plan.problem, plan.offsets)
    assert plan.height - plan.lower_bound <= slack


@pytest.mark.slow
def test_a_hundred_thousand_buffers_are_packed_fast() -> None:
    pack(live_sums(1000, 0))
    plan = pack(live_sums(100_000, 1))
    validate_packing(plan.problem, plan.offsets)
    assert plan.ratio < 1.1
    assert plan.seconds < 10
