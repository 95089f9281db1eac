"""CSV in and out: every dialect, and one clear error for each way to be malformed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memopt.errors import PackingInputError
from memopt.packing import (
    PackingBuffer,
    PackingProblem,
    format_csv,
    pack,
    parse_csv,
    parse_offsets,
    read_csv,
    validate_packing,
    write_csv,
)
from tests.packing.problems import pins_clash, problems

TWO = PackingProblem((PackingBuffer("a", 8, 0, 4), PackingBuffer("b", 16, 2, 6)))


@given(problems())
def test_what_is_written_is_read_as_the_same_problem(problem: PackingProblem) -> None:
    text = format_csv(problem)
    assert parse_csv(text, pins=True) == problem
    assert format_csv(parse_csv(text, pins=True)) == text
    if not any(b.gaps for b in problem.buffers):
        assert parse_csv(format_csv(problem, header=False), pins=True) == problem


@given(problems())
def test_a_written_plan_is_read_back_and_validates(problem: PackingProblem) -> None:
    if pins_clash(problem):
        return
    plan = pack(problem)
    text = format_csv(problem, plan.offsets)
    assert parse_offsets(text) == plan.offsets
    validate_packing(parse_csv(text), parse_offsets(text))
    validate_packing(problem, parse_offsets(text))


@pytest.mark.parametrize(
    "text",
    [
        "id,lower,upper,size\na,0,4,8\nb,2,6,16\n",
        "a,0,4,8\nb,2,6,16\n",
        "\ufeffID , Lower,UPPER,size\r\n\r\na,0,4,8\r\n# a note\r\nb,2,6,16",
        "size,upper,lower,buffer_id\n8,4,0,a\n16,6,2,b\n",
        "buffer,begin,end,size\na,0,3,8\nb,2,5,16\n",
        "id,start,upper,size,alignment,gaps,offset\na,0,4,8,1,,\nb,2,6,16,,,64\n",
        "a,0,4,8,1,7\nb,2,6,16,1,9\n",
        '"a",0,4,+8\n"b", 2 ,6,16\n',
    ],
)
def test_dialects_of_one_problem(text: str) -> None:
    assert parse_csv(text) == TWO


def test_an_offset_is_a_pin_only_when_asked_for() -> None:
    text = "id,lower,upper,size,offset\na,0,4,8,24\nb,2,6,16,\n"
    assert parse_csv(text) == TWO
    assert [b.offset for b in parse_csv(text, pins=True).buffers] == [24, None]
    assert parse_offsets(text) == {"a": 24}


def test_gaps_and_inclusive_ends() -> None:
    half_open = parse_csv("id,lower,upper,size,gaps\na,0,10,8,2-4 6-7\n").buffers[0]
    inclusive = parse_csv("id,start,end,size,gaps\na,0,9,8,2-3 6-6\n").buffers[0]
    assert half_open == inclusive
    assert half_open.pieces == ((0, 2), (4, 6), (7, 10))


def test_columns_can_be_named_for_a_text_without_header() -> None:
    problem = parse_csv("0,4,8,a,24\n", columns=["lower", "upper", "size", "id", "offset"], pins=True)
    assert problem.buffers == (PackingBuffer("a", 8, 0, 4, offset=24),)


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("id,lower,upper,size\na,0,4,-8\n", 2, 4, "size -8 is negative"),
        ("id,lower,upper,size\na,0,4,8\nb,4,4,8\n", 3, 3, r"interval \[4, 4\) is empty"),
        ("id,lower,upper,size\na,0,4,8\n\nb,5,4,8\n", 4, 3, r"interval \[5, 4\) is empty"),
        ("id,lower,upper,size\na,0,4,8\nb,0,4,8\na,0,4,8\n", 4, 1, "'a' occurs twice, first in line 2"),
        ("id,lower,upper,size\na,0,four,8\n", 2, 3, "'four' is not an integer"),
        ("a,0,4,8\nb,0,4,1e3\n", 2, 4, "'1e3' is not an integer"),
        ("a,0,4,1_0\n", 1, 4, "'1_0' is not an integer"),
        ("a,0,,8\n", 1, 3, "'' is not an integer"),
        ("size,id,lower,upper\n10000000000000000000,a,0,4\n", 2, 1, "size 10000000000000000000 is beyond 2\\^62"),
        (f"a,0,4,{'9' * 5000}\n", 1, 4, "is beyond 2\\^62"),
        ("a,-9999999999999999999,4,8\n", 1, 2, "is beyond 2\\^62"),
        ("id,lower,upper,size,alignment\na,0,4,8,0\n", 2, 5, "alignment 0 is not in"),
        ("id,lower,upper,size,gaps\na,0,4,8,1:2\n", 2, 5, "'1:2' is not a gap"),
        ("id,lower,upper,size,gaps\na,0,4,8,3-5\n", 2, 5, "does not fit"),
        ("id,start,end,size\na,4,3,8\n", 2, 3, "is empty"),
        ("id,lower,upper,size,offset\na,0,4,8,x\n", 2, 5, "'x' is not an integer"),
        ("id,lower,upper,size,alignment,offset\na,0,4,8,8,4\n", 2, 6, "not a multiple of its alignment 8"),
        ("id,lower,upper,size\na,0,4\n", 2, 4, "3 fields where 4 are expected"),
        ("a,0,4\n", 1, 4, "3 fields"),
        ("id,lower,upper,length\n", 1, 4, "'length' is not a column"),
        ("id,lower,size\n", 1, 4, "no column 'upper'"),
        ("id,lower,start,upper,size\n", 1, 3, "a second column for 'lower'"),
        ("id,lower,end,upper,size\n", 1, 4, "a second column for 'upper'"),
        (",0,4,8\n", 1, 1, "an id is empty"),
        ('a,0,4,8\n"b,0,4,8\n', 2, 1, "not CSV"),
    ],
)
def test_malformed_texts_name_line_and_column(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(PackingInputError, match=f"^p.csv, line {line}, column {column}.*: .*{why}"):
        parse_csv(text, source="p.csv", pins=True)


@given(st.text(alphabet=',"\n\r#-0123456789aid\x00 ', max_size=40))
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        problem = parse_csv(text, pins=True)
    except PackingInputError:
        return
    assert parse_csv(format_csv(problem), pins=True) == problem


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    write_csv(path, TWO, {"a": 0, "b": 8})
    assert path.read_text() == "id,lower,upper,size,offset\na,0,4,8,0\nb,2,6,16,8\n"
    assert read_csv(path, capacity=99) == PackingProblem(TWO.buffers, 99)
    path.write_bytes(b"a,0,4,\xff\n")
    with pytest.raises(PackingInputError, match="not UTF-8"):
        read_csv(path)
    with pytest.raises(PackingInputError, match="cannot be read"):
        read_csv(tmp_path / "absent.csv")


def test_what_a_csv_cannot_say_is_refused() -> None:
    with pytest.raises(PackingInputError, match="gaps"):
        format_csv(PackingProblem((PackingBuffer("a", 1, 0, 9, gaps=((1, 2),)),)), header=False)
    for name in ("", " a", "#a"):
        with pytest.raises(PackingInputError, match="cannot stand in a CSV"):
            format_csv(PackingProblem((PackingBuffer(name, 1, 0, 9),)))
