"""`compare`: rows, verdicts, the table, the dictionary, the picture."""

from __future__ import annotations

import json

import numpy as np
import pytest

import memopt
from memopt import models
from memopt.compare import num_pieces
from memopt.errors import FeedError, OptionError

MACHINE = memopt.Machine.host_and("gpu", lacks={"BatchNormalization"})


@pytest.fixture(scope="module")
def graph():
    return models.build("resnet18", image=32)


@pytest.fixture(scope="module")
def comparison(graph):
    return memopt.compare(graph, transfers=["fluid-1.5", "publish", "outer"], machine=MACHINE, show=False)


def test_one_row_for_each_strategy_and_policy(comparison):
    assert [(row.strategy, row.transfer) for row in comparison.rows] == [
        (s, t) for s in ("none", "rename", "share") for t in ("fluid-1.5", "publish", "outer")
    ]


def test_only_renaming_under_fluid_is_wrong_and_says_so_before_and_after_running(comparison):
    for row in comparison.rows:
        if (row.strategy, row.transfer) == ("rename", "fluid-1.5"):
            assert not row.valid
            assert row.num_findings > 0
            assert row.findings
            assert row.max_rel_error > 0.01
            assert row.verdict == f"WRONG: {len(row.lost)} lost"
            assert {one.fault for one in row.lost} == {"pass"}
        else:
            assert row.valid
            assert row.max_rel_error < 1e-4
            assert row.verdict == "ok"


def test_table_fits_and_has_a_line_for_each_device(comparison):
    text = str(comparison)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("gpu") >= len(comparison.rows)
    assert "peak" in text
    assert "is wrong, for example" in text


def test_dictionary_is_json_and_has_the_fixed_names(comparison):
    data = json.loads(json.dumps(comparison.to_dict()))
    assert set(data) == {"model", "machine", "rounding", "rows"}
    assert data["machine"]["default"] == "gpu"
    for row in data["rows"]:
        assert set(row) >= {"strategy", "transfer", "devices", "valid", "num_findings", "max_rel_error", "seconds"}
        for use in row["devices"].values():
            names = ("height", "peak", "lower_bound", "scratch", "feed", "param", "transfer")
            assert set(use) >= {f"{name}_bytes" for name in names}


def test_rows_are_found_by_name(comparison):
    assert comparison.row("share", "outer").transfer == "outer"
    assert comparison.row("share").transfer == "fluid-1.5"
    with pytest.raises(OptionError, match="no row best"):
        comparison.row("best")


def test_plot(comparison, tmp_path):
    assert comparison.plot(tmp_path / "memory.png").stat().st_size > 10_000


def test_one_device_has_one_row_a_strategy_and_says_why(graph, capsys):
    comparison = memopt.compare(graph, transfers=["fluid-1.5", "publish"])
    assert [row.transfer for row in comparison.rows] == ["publish"] * 3
    assert "nothing is transferred" in " ".join(capsys.readouterr().out.split())
    assert comparison.row("share").devices["host"].peak_bytes < comparison.row("none").devices["host"].peak_bytes


def test_without_a_run_there_is_no_error_and_no_oracle(graph):
    calls = []
    comparison = memopt.compare(graph, ["none"], machine=MACHINE, run=False, progress=calls.append, show=False)
    assert comparison.rows[0].max_rel_error is None
    assert comparison.rows[0].verdict == "ok"
    assert len(calls) == num_pieces(["none"], ["fluid-1.5", "publish"], MACHINE, False) == 2


def test_bad_arguments_are_refused(graph):
    with pytest.raises(OptionError, match="at least one"):
        memopt.compare(graph, [], show=False)
    with pytest.raises(OptionError, match="nosuch"):
        memopt.compare(graph, ["nosuch"], show=False)
    with pytest.raises(FeedError):
        memopt.compare(graph, ["none"], feeds={}, show=False)


def test_options_reach_compile(graph):
    never = memopt.compare(graph, ["none"], free="never", show=False, run=False)
    eager = memopt.compare(graph, ["none"], show=False, run=False)
    assert never.rows[0].devices["host"].peak_bytes > eager.rows[0].devices["host"].peak_bytes


def test_a_dtype_wish_of_the_host_makes_policies_matter():
    builder = memopt.GraphBuilder("cast")
    x = builder.input("x", (8,), "float64")
    builder.output(builder.relu(builder.relu(x)))
    machine = memopt.Machine.host_only(dtypes={"float64": "float32"})
    comparison = memopt.compare(builder.build(), ["none", "rename"], machine=machine, show=False)
    assert len(comparison.rows) == 4


@pytest.mark.slow
def test_resnet50_at_full_size():
    comparison = memopt.compare(models.build("resnet50"), machine=MACHINE, show=False)
    wrong = [(row.strategy, row.transfer) for row in comparison.rows if not row.right]
    assert wrong == [("rename", "fluid-1.5")]


def test_an_update_that_gets_lost_is_seen_with_no_pass_at_all():
    builder = memopt.GraphBuilder("training")
    weight = builder.param("weight", np.array([1, 2, 3], np.float32))
    rate = builder.param("rate", np.array(0.5, np.float32))
    gradient = builder.input("gradient", (3,))
    builder.output(builder.relu(gradient))
    builder.op("SGD", weight, gradient, rate, device="host")
    comparison = memopt.compare(builder.build(), ["none", "share"], machine=memopt.Machine.host_and("gpu"), show=False)
    for row in comparison.rows:
        assert row.right == row.valid == (row.transfer == "publish")


def test_strategies_may_be_passes(graph):
    import passes

    rows = memopt.compare(graph, [[passes.InplaceShare()], ()], run=False, show=False).rows
    assert [row.strategy for row in rows] == ["inplace-share", "none"]


def test_repr_is_short(comparison):
    assert len(repr(comparison)) < 200
