"""`--outputs caller` and `--strict-donation`: what they print, their JSON, and plans in files."""

from __future__ import annotations

import json

import pytest

from memopt import GraphBuilder
from memopt.cli import main
from memopt.ir import print_graph


@pytest.fixture
def run(capsys):
    """run(*args) -> (status, stdout or JSON, stderr)"""

    def call(*args):
        status = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        if "--json" in args and not err:
            return status, json.loads(out), err
        assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrote"))
        return status, out, err

    return call


@pytest.fixture
def model(tmp_path):
    """A text graph: relu of a feed."""
    b = GraphBuilder("tiny")
    b.output(b.relu(b.input("x", (256,)), name="y"), b.op("Cast", b.input("z", (4,)), to="int64", name="i"))
    path = tmp_path / "tiny.txt"
    path.write_text(print_graph(b.build()))
    return path


def test_plan(run, model):
    status, out, _ = run("plan", model, "--outputs", "caller")
    assert status == 0
    assert any(line.split() == ["outputs", "1.03", "KiB"] for line in out.splitlines())
    assert "made in the caller's arrays" in out
    _, data, _ = run("plan", model, "--outputs", "caller", "--json")
    use = data["devices"]["host"]
    assert (use["height_bytes"], use["output_bytes"], use["total_bytes"]) == (0, 1056, 2096)
    _, data, _ = run("plan", model, "--json")
    assert data["devices"]["host"]["output_bytes"] == 0
    assert "made in the caller's arrays" not in run("plan", model)[1]


def test_plans_in_files(run, model, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", model, "--outputs", "caller", "-o", path)[0] == 0
    assert run("validate", path)[0] == 0
    status, data, _ = run("run", path, "--json")
    assert status == 0
    assert {name: one["made"] for name, one in data["outputs"].items()} == {"y": "in place", "i": "in place"}
    _, data, _ = run("run", path, "--no-validate", "--json")
    assert data["outputs"]["y"]["made"] == data["feeds"]["x"] == "copied: the plan was not validated"
    broken = json.loads(path.read_text())
    for slot in broken["slots"]:
        slot["space"] = slot["space"].replace("output:y", "output:q")
    path.write_text(json.dumps(broken))
    for command in ("validate", "run"):
        status, out, err = run(command, path)
        assert status == 1
        assert "the graph has no output %q" in " ".join((out + err).split())


def test_run_repeats_with_donated_feeds(run, model):
    status, data, _ = run("run", model, "--donate", "x", "--repeat", 3, "--json")
    assert status == 0
    assert data["feeds"] == {"x": "in place", "z": "in place"}
    assert data["outputs"]["y"]["made"] == "copied: outputs='arena'"


def test_strict_donation(run, model, tmp_path):
    assert run("plan", model, "--donate", "x", "--strict-donation")[0] == 0
    status, _, err = run("plan", model, "--donate", "x", "--donate", "z", "--strict-donation")
    assert status == 1
    assert "no value takes their bytes: %z: %i over it (32 bytes over 16)" in err
    run("plan", model, "-o", tmp_path / "plan.json")
    status, _, err = run("run", tmp_path / "plan.json", "--strict-donation")
    assert status == 2
    assert "plan the model again" in err


def test_explain(run, model):
    status, out, _ = run("explain", model, "--outputs", "caller", "--value", "y")
    assert status == 0
    assert "host output:y, bytes [0, 1024)" in out
    status, out, _ = run("explain", model, "--outputs", "caller")
    assert status == 0
    assert "No arena holds any byte" in out
