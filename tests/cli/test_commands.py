"""Every command: its words, its JSON, its exit status. In process, on small models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import memopt
from memopt import models
from memopt.cli import main

GPU = ["--device", "gpu", "--lacks", "gpu:BatchNormalization"]
SMALL = ["resnet18", "--image", "32"]


@pytest.fixture
def run(capsys):
    """run(*args) -> (status, stdout, stderr); checks that output fits and that no traceback is seen."""

    def call(*args):
        status = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        if "--json" in args and status == 0:
            return status, json.loads(out), err
        assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrote"))
        return status, out, err

    return call


def test_models(run):
    status, out, _ = run("models")
    assert status == 0
    assert "resnet50" in out
    _, data, _ = run("models", "--json")
    assert {one["name"] for one in data["models"]} == {info.name for info in models.list_models()}


@pytest.mark.parametrize("command", [[], ["compare"], ["plan"], ["run"], ["explain"], ["validate"], ["models"]])
def test_help(run, command):
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert "usage: memopt" in out


def test_compare(run, tmp_path):
    picture = tmp_path / "memory.png"
    status, out, _ = run("compare", *SMALL, "--transfers", "fluid-1.5,publish", "--plot", picture)
    assert status == 0
    assert "WRONG" in out
    assert picture.stat().st_size > 10_000
    _, data, _ = run("compare", *SMALL, "--transfers", "fluid-1.5", "--no-run", "--json")
    assert data["model"] == "resnet18"
    assert [row["valid"] for row in data["rows"]] == [True, False, True]


def test_compare_on_the_host_alone(run):
    status, out, _ = run("compare", "lenet", "--host-only")
    assert status == 0
    assert "gpu" not in out


@pytest.mark.slow
def test_compare_training(run):
    lacks = ["--lacks", "gpu:BatchNormalization,BatchNormalizationGrad"]
    status, out, _ = run("compare", *SMALL, "--train", "--batch", 2, *lacks, "--strategies", "none,rename")
    assert status == 0
    assert "Whose fault" in out
    _, data, _ = run("compare", *SMALL, "--train", "--no-run", "--json", "--stats-device", "host", "--batch", 2)
    assert data["machine"]["devices"][1]["lacks"] == ["BatchNormalization", "BatchNormalizationGrad"]
    faults = {(row["strategy"], row["transfer"]): {one["fault"] for one in row["lost"]} for row in data["rows"]}
    assert {key for key, found in faults.items() if found} == {("rename", "fluid-1.5")}


def test_training_options_reach_the_model(run):
    size = ["--layers", 1, "--sequence", 8]
    status, out, _ = run("plan", "gpt", "--train", *size, "--optimizer", "adamw", "--loss", "mse")
    assert status == 0
    assert "gpt" in out


def test_plan_validate_run_round_trip(run, tmp_path):
    path, feeds, outputs = tmp_path / "plan.json", tmp_path / "in.npz", tmp_path / "out.npz"
    status, out, _ = run("plan", *SMALL, *GPU, "-o", path, "--plot", tmp_path / "arena.svg")
    assert status == 0
    assert "lower bound" in out
    assert run("validate", path)[:2] == (0, run("validate", path)[1])
    _, data, _ = run("validate", path, "--json")
    assert data["valid"]
    graph = models.build("resnet18", image=32)
    x = models.random_feeds(graph, 5)
    np.savez(feeds, **x)
    status, out, _ = run("run", path, "--model", "resnet18", "--image", 32, "--feeds", feeds, "--output", outputs)
    assert status == 0
    assert "logits" in out
    expected, _ = memopt.run_reference(graph, x)
    with np.load(outputs) as saved:
        assert np.allclose(saved["logits"], expected["logits"], rtol=1e-3, atol=1e-3)


def test_a_plan_without_weights_runs_with_random_ones(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", "lenet", "-o", path)[0] == 0
    assert run("run", path, "--weights", "random")[0] == 0


def test_a_wrong_plan_is_refused_and_can_be_had_all_the_same(run, tmp_path):
    path = tmp_path / "plan.json"
    wrong = [*SMALL, *GPU, "--strategy", "rename", "--transfer", "fluid-1.5", "-o", path]
    status, _, err = run("plan", *wrong)
    assert status == 1
    assert err.startswith("memopt: error:")
    assert err.count("\n") == 1
    assert not path.exists()
    assert run("plan", *wrong, "--no-validate")[0] == 0
    status, out, _ = run("validate", path)
    assert status == 1
    assert "lost-update" in out
    assert main(["validate", str(path), "--json"]) == 1


def test_run_measures_and_sanitizes(run):
    status, out, _ = run("run", "lenet", "--measure", "--sanitize", "--repeat", 2)
    assert status == 0
    assert "touched" in out
    _, data, _ = run("run", "lenet", "--json", "--measure")
    assert data["outputs"]["logits"]["shape"] == [1, 10]
    assert data["measured"]["planned_bytes"]["host"] == data["devices"]["host"]["height_bytes"]


def test_runs_are_repeatable(run):
    first, second = (run("run", "mlp", "--json")[1]["outputs"] for _ in range(2))
    assert first == second


def test_explain(run):
    status, out, _ = run("explain", *SMALL, *GPU)
    assert status == 0
    assert "live value" in out
    assert "refused" in out
    _, out, _ = run("explain", *SMALL, "--about", "layer1.0.relu1", "--refused")
    assert "layer1.0" in out
    _, data, _ = run("explain", *SMALL, "--json", "--accepted")
    assert sum(one["bytes"] for one in data["peaks"]["host"]["live"]) == data["devices"]["host"]["peak_bytes"]
    assert all(one["accepted"] for one in data["decisions"])


def test_a_text_graph_is_a_model(run, tmp_path):
    path = tmp_path / "lenet.txt"
    builder = memopt.GraphBuilder("tiny")
    builder.output(builder.relu(builder.input("x", (4,))))
    path.write_text(str(builder.build()))
    status, out, _ = run("run", path)
    assert status == 0
    assert "tiny" in out


def test_what_does_not_fit_is_status_1_and_says_by_how_much(run):
    status, _, err = run("plan", *SMALL, "--capacity", "host:1MiB")
    assert status == 1
    assert "bytes too many" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "nosuch"], "neither a file nor a built-in model"),
        (["plan", "lenet", "--strategy", "nosuch"], "nosuch"),
        (["plan", "lenet", "--dims", "batch=2"], "--batch"),
        (["plan", "lenet", "--lacks", "gpu:Conv"], "--device gpu"),
        (["plan", "lenet", "--optimizer", "sgd"], "add --train"),
        (["plan", "lenet", "--train", "--optimizer", "lion"], "lion"),
        (["plan", "lenet", "--layers", "3"], "the depth of lenet is fixed"),
        (["compare", "lenet", "--lacks", "npu:Conv"], "--device npu"),
        (["plan", "lenet", "--lacks", "Conv"], "DEVICE:"),
        (["plan", "lenet", "--device", "gpu", "--lacks", "gpu:Nonsense"], "Nonsense"),
        (["plan", "lenet", "--device", "gpu", "--dtype", "gpu:float64"], "A=B"),
        (["plan", "lenet", "--capacity", "host:many"], "number of bytes"),
        (["plan", "lenet", "--image", "-3"], "image=-3"),
        (["plan", "lenet", "--host-only", "--device", "gpu"], "contradict"),
        (["plan", "lenet", "-o", "/nonexistent/plan.json"], "/nonexistent/plan.json"),
        (["compare", "lenet", "--strategies", ","], "names nothing"),
        (["compare", "lenet", "--transfers", "fluid-9"], "fluid-9"),
        (["compare", "--plot", "memory.docx"], "ending"),
        (["plan", "lenet", "--plot", "/nonexistent/a.png"], "no folder"),
        (["run", "mlp", "--model", "lenet"], "is a model itself"),
        (["run", "lenet", "--repeat", "0"], "less than 1"),
        (["run", "lenet", "--feeds", "/nonexistent.npz"], "No such file"),
        (["validate", "/nonexistent.json"], "nonexistent"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, args, message):
    status, out, err = run(*args)
    assert status == 2
    assert out == ""
    assert err.startswith("memopt: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", b"\x80\x04K\x01."])
def test_broken_feeds_files(run, tmp_path, content):
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    status, _, err = run("run", "lenet", "--feeds", path)
    assert status == 2
    assert "not a readable .npz" in err


@pytest.mark.parametrize("args", [[], ["nosuch"], ["plan"], ["plan", "lenet", "--transfer", "x"]])
def test_bad_usage_is_status_2(run, args):
    status, _, err = run(*args)
    assert status == 2
    assert "usage:" in err


def test_interrupt_is_quiet(run, monkeypatch):
    monkeypatch.setattr("memopt.cli.models._run", lambda args: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run("models") == (130, "", "")
