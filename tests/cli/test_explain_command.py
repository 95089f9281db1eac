"""`memopt explain`, and `--keep`, `--donate` and `--without` of the commands that plan."""

from __future__ import annotations

import json

import numpy as np
import pytest

from memopt import models
from memopt.cli import main

SMALL = ["resnet18", "--image", "32"]
GPU = ["--device", "gpu", "--lacks", "gpu:BatchNormalization"]
WRONG = [*SMALL, *GPU, "--strategy", "rename", "--transfer", "fluid-1.5"]


@pytest.fixture
def run(capsys):
    """run(*args) -> (status, stdout or JSON, stderr); checks the width of what is printed."""

    def call(*args):
        status = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        if "--json" in args and not err:
            return status, json.loads(out), err
        assert all(len(line) <= 80 for line in out.splitlines())
        return status, out, err

    return call


def test_the_peak_and_the_moves(run):
    status, out, _ = run("explain", *SMALL, *GPU)
    assert status == 0
    for text in ("why it is alive", "decided about them", "next best moves", "What the passes decided"):
        assert text in out
    _, data, _ = run("explain", *SMALL, *GPU, "--json", "--seconds", 5)
    for name, peak in data["peaks"].items():
        assert sum(one["bytes"] for one in peak["live"]) == peak["peak_bytes"] == data["devices"][name]["peak_bytes"]
    assert {"kind", "text", "how", "saved_bytes", "total_bytes", "method"} <= set(data["moves"][0])


def test_all_lists_all(run):
    def count(*more):
        return run("explain", "lstm", "--strategy", "none", "--seconds", 0, *more)[1].count("\n")

    assert count("--all") >= count()


def test_one_value(run):
    status, out, _ = run("explain", *SMALL, "--value", "layer1.0.conv1")
    assert status == 0
    assert "keep=['layer1.0.conv1']), or --keep layer1.0.conv1" in " ".join(out.split())
    _, data, _ = run("explain", *SMALL, "--value", "layer1.0.conv1", "--json")
    assert data["value"]["producer"] == "layer1.0.conv1"
    assert data["value"]["places"][0]["kind"] == "home"
    status, _, err = run("explain", *SMALL, "--value", "layer1.0.con1")
    assert status == 2
    assert "did you mean %layer1.0.conv1" in err


def test_bisect(run, tmp_path):
    status, out, _ = run("explain", *WRONG, "--bisect")
    assert status == 1
    assert "inplace-rename at step" in out
    status, data, _ = run("explain", *WRONG, "--bisect", "--json")
    assert status == 1
    assert data["bisection"]["cause"] == "decisions"
    assert len(data["bisection"]["culprits"][0]["decisions"]) == 1
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **models.random_feeds(models.build("resnet18", image=32), 3))
    status, out, _ = run("explain", *SMALL, *GPU, "--bisect", "--feeds", feeds)
    assert status == 0
    assert "Nothing changes the result" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--value", "x", "--bisect"], "ask one at a time"),
        (["--every"], "--every goes with --bisect"),
        (["--feeds", "x.npz"], "--feeds goes with --bisect"),
        (["--seconds", "-1"], "is negative"),
        (["--keep", "nope"], "keep='nope' is not a value"),
        (["--donate", "conv1"], "is not a feed"),
        (["--without", "nope"], "neither a pass nor a value"),
    ],
)
def test_bad_usage(run, args, message):
    status, _, err = run("explain", *SMALL, *args)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["explain", "plan", "run"])
def test_without_shows_the_difference(run, command):
    status, out, _ = run(command, *SMALL, "--without", "inplace-share", "--without", "conv1")
    assert status == 0
    assert "Without inplace-share, conv1" in out
    _, data, _ = run(command, *SMALL, "--without", "inplace-share", "--json")
    assert data["without"] == ["inplace-share"]
    assert data["difference_bytes"]["host"]["peak_bytes"] > 0
    assert "without" not in run(command, *SMALL, "--json")[1]


def test_kept_values_are_among_the_outputs_of_a_run(run, tmp_path):
    path = tmp_path / "out.npz"
    status, out, _ = run("run", *SMALL, "--keep", "conv1", "--donate", "x")
    assert status == 0
    assert "conv1" in out
    _, data, _ = run("run", *SMALL, "--keep", "conv1", "--output", path, "--json")
    assert list(data["outputs"]) == ["logits", "conv1"]
    with np.load(path) as saved:
        assert saved["conv1"].shape == (1, 64, 16, 16)


def test_a_plan_file_is_settled(run, tmp_path):
    path = tmp_path / "plan.json"
    assert main(["plan", "lenet", "-o", str(path)]) == 0
    run("models")
    status, _, err = run("run", path, "--weights", "random", "--keep", "conv1")
    assert status == 2
    assert "--keep conv1 does not go with a plan.json" in err
