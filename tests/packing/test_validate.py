"""One test for each way in which a placement can be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memopt.errors import ConflictError, OptionError
from memopt.packing import PackingBuffer, PackingProblem, validate_packing
from tests.packing.problems import problems

PAIR = PackingProblem((PackingBuffer("7", 256, 3, 9), PackingBuffer("9", 512, 5, 12, alignment=64)))


def test_a_right_placement_has_no_findings() -> None:
    assert validate_packing(PAIR, {"7": 512, "9": 0}, capacity=768) == []


def test_an_overlap_names_the_pair_and_the_bytes() -> None:
    with pytest.raises(ConflictError, match=r"^buffers %7 \[3, 9\) and %9 \[5, 12\) overlap at bytes \[256, 384\)$"):
        validate_packing(PAIR, {"7": 128, "9": 256})


@pytest.mark.parametrize(
    ("offsets", "capacity", "kind", "text"),
    [
        ({"7": 512}, None, "missing", "buffer %9 [5, 12) has no offset"),
        ({"7": -1, "9": 256}, None, "range", "negative offset -1"),
        ({"7": 0, "9": 257}, None, "alignment", "placed at 257, not a multiple of its alignment 64"),
        ({"7": 512, "9": 0}, 767, "capacity", "ends at byte 768, above the capacity 767"),
    ],
)
def test_each_fault_of_one_buffer(offsets: dict[str, int], capacity: int | None, kind: str, text: str) -> None:
    found = validate_packing(PAIR, offsets, capacity=capacity, findings="return")
    assert [finding.kind for finding in found] == [kind]
    assert text in found[0].message


def test_a_pin_is_binding() -> None:
    problem = PackingProblem((PackingBuffer("a", 8, 0, 4, offset=16),))
    assert validate_packing(problem, {"a": 16}) == []
    found = validate_packing(problem, {"a": 8}, findings="return")
    assert [(f.kind, f.lower, f.upper) for f in found] == [("pin", 8, 16)]
    assert "is pinned at 16 but placed at 8" in found[0].message


def test_a_gap_allows_what_the_rest_forbids() -> None:
    guest = PackingBuffer("b", 4, 3, 6)
    assert (
        validate_packing(PackingProblem((PackingBuffer("a", 4, 0, 9, gaps=((3, 6),)), guest)), {"a": 0, "b": 0}) == []
    )
    for gap in ((4, 6), (3, 5)):
        problem = PackingProblem((PackingBuffer("a", 4, 0, 9, gaps=(gap,)), guest))
        assert [f.kind for f in validate_packing(problem, {"a": 0, "b": 3}, findings="return")] == ["overlap"]


def test_touching_in_time_or_bytes_is_no_overlap() -> None:
    problem = PackingProblem((PackingBuffer("a", 4, 0, 3), PackingBuffer("b", 4, 3, 6), PackingBuffer("c", 4, 0, 6)))
    assert validate_packing(problem, {"a": 0, "b": 0, "c": 4}) == []


def test_further_findings_are_notes_and_findings_is_checked() -> None:
    problem = PackingProblem(tuple(PackingBuffer(str(i), 4, 0, 3) for i in range(4)))
    with pytest.raises(ConflictError) as caught:
        validate_packing(problem, dict.fromkeys("0123", 0))
    assert len(caught.value.__notes__) == 5
    with pytest.raises(OptionError, match="findings"):
        validate_packing(problem, {}, findings="print")  # type: ignore[arg-type]


@given(problems(), st.data())
def test_the_sweep_finds_exactly_the_pairs_of_the_definition(problem: PackingProblem, data: st.DataObject) -> None:
    offsets = {b.id: data.draw(st.integers(0, 8)) for b in problem.buffers}
    found = {
        frozenset((f.first, f.second))
        for f in validate_packing(problem, offsets, findings="return")
        if f.kind == "overlap"
    }
    meant = set()
    for i, a in enumerate(problem.buffers):
        for b in problem.buffers[:i]:
            together = any(p < v and u < q for p, q in a.pieces for u, v in b.pieces)
            low, high = max(offsets[a.id], offsets[b.id]), min(offsets[a.id] + a.size, offsets[b.id] + b.size)
            if together and a.size and b.size and low < high:
                meant.add(frozenset((a.id, b.id)))
    assert found == meant
