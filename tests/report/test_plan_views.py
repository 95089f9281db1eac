"""Timelines, tables and pictures of a plan agree with the plan's own figures."""

from __future__ import annotations

import numpy as np
import pytest

import memopt
from memopt import models
from memopt.errors import OptionError
from memopt.report import (
    Curve,
    arena_figure,
    at_peak,
    decisions_list,
    decisions_table,
    describe_plan,
    device_dict,
    filter_decisions,
    live_bytes,
    memory_figure,
    plan_table,
    save_figure,
    step_bytes,
)

MACHINE = memopt.Machine.host_and("gpu", lacks={"BatchNormalization", "MaxPool"})


@pytest.fixture(scope="module", params=["none", "rename", "share"])
def plan(request):
    return memopt.compile(models.build("resnet18", image=32), request.param, MACHINE)


def test_live_bytes_reach_exactly_the_planned_peak(plan):
    for name, live in live_bytes(plan).items():
        assert live.max() == plan.devices[name].peak_bytes
        assert len(live) == len(plan.program.instructions)
        assert live.min() >= 0


def test_live_bytes_equal_their_definition(plan):
    live = live_bytes(plan)
    for i in range(0, len(plan.program.instructions), 7):
        for name in live:
            held = [b for b in plan.program.buffers if b.space == "arena" and b.device == name and b.start <= i < b.end]
            assert live[name][i] == sum(b.size_bytes for b in held)


def test_steps_keep_the_peak(plan):
    for name, live in step_bytes(plan).items():
        assert live.max() == plan.devices[name].peak_bytes
        assert len(live) == len(plan.graph.nodes)


def test_what_is_live_at_the_peak_adds_up_and_is_named(plan):
    for name in ("host", "gpu"):
        instruction, held = at_peak(plan, name)
        assert sum(one.buffer.size_bytes for one in held) == plan.devices[name].peak_bytes
        assert 0 <= instruction < len(plan.program.instructions)
        for one in held:
            assert plan.graph.has_value(one.value)
            assert one.producer != "-"
            assert one.freed_after != "-"


def test_table_shows_every_device_and_figure(plan):
    text = str(plan_table(plan))
    assert "host" in text
    assert "gpu" in text
    assert "lower bound" in text
    assert str(plan.report()) == text
    assert set(device_dict(plan.devices["gpu"])) >= {"height_bytes", "peak_bytes", "total_bytes", "status"}
    assert plan.graph.name in describe_plan(plan)


def test_many_devices_fit_80_columns():
    devices = tuple(memopt.Device(f"accelerator-{i}") for i in range(7))
    machine = memopt.Machine(devices=devices, default="accelerator-0")
    text = str(memopt.compile(models.build("mlp"), (), machine).report())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "accelerator-6" in text


def test_decisions_are_counted_and_listed():
    plan = memopt.compile(models.build("resnet18", image=32), "share")
    table = decisions_table(plan.decisions)
    assert sum(int(row[3]) for row in table.rows) == len(plan.decisions)
    accepted = filter_decisions(plan.decisions, accepted=True)
    assert accepted
    assert all(one.accepted for one in accepted)
    about = filter_decisions(plan.decisions, "layer1.0.relu1")
    assert 0 < len(about) < len(plan.decisions)
    assert sum(line[:2] in ("+ ", "- ") for line in decisions_list(plan.decisions, 2).splitlines()) == 2
    assert "more" in decisions_list(plan.decisions, 2)
    assert decisions_table(()).rows == ()


def test_pictures_are_written(plan, tmp_path):
    path = tmp_path / "arena.png"
    save_figure(arena_figure(plan, "title"), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    curves = [
        Curve("none", t, d, live, t == "outer") for t in ("publish", "outer") for d, live in step_bytes(plan).items()
    ]
    save_figure(memory_figure(curves, "a long title " * 20), tmp_path / "memory.svg")
    assert "WRONG result" in (tmp_path / "memory.svg").read_text() or (tmp_path / "memory.svg").stat().st_size > 1000


def test_pictures_of_empty_graphs():
    memory_figure([Curve("none", "publish", "host", np.zeros(0, np.int64))], "nothing")
    builder = memopt.GraphBuilder("empty")
    builder.output(builder.input("x", (2,)))
    arena_figure(memopt.compile(builder.build(), ()), "nothing")


def test_an_unknown_ending_is_refused(plan, tmp_path):
    with pytest.raises(OptionError, match="ending"):
        save_figure(arena_figure(plan, ""), tmp_path / "arena.docx")


def test_without_matplotlib_the_way_out_is_named(plan, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(OptionError, match=r"pip install 'memopt\[plot\]'"):
        arena_figure(plan, "")
