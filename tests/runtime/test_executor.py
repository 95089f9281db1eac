"""The executor: repeatable, touches nothing of the caller's, says what it measured, catches wrong accesses."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, load_plan, run_reference, validate
from memopt.errors import ExecutionError, FeedError, InvalidPlanError, LoadError, OptionError


def small(dtype="float32"):
    rng = np.random.default_rng(0)
    b = GraphBuilder("small")
    x = b.input("x", (4, 8), dtype)
    h = b.relu(b.gemm(x, b.param("w", rng.standard_normal((8, 6)).astype(dtype)), b.param("c", np.ones(6, dtype))))
    b.output(b.softmax(b.mul(h, h), axis=1), h)
    return b.build()


def feeds_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}


@pytest.mark.parametrize("strategy", ["none", "rename", "share"])
def test_runs_are_repeatable_and_touch_nothing(strategy):
    graph = small()
    plan = compile(graph, strategy)
    feeds = feeds_of(graph)
    kept = {name: array.copy() for name, array in feeds.items()}
    params = {v.name: graph.param_data(v).copy() for v in graph.params}
    first, second, third = plan.run_many([feeds, feeds_of(graph, 1), feeds])
    for name in first:
        np.testing.assert_array_equal(first[name], third[name])
        assert not np.array_equal(first[name], second[name])
    np.testing.assert_array_equal(feeds["x"], kept["x"])
    for v in graph.params:
        np.testing.assert_array_equal(graph.param_data(v), params[v.name])
    want, _ = run_reference(graph, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(first[name], array, rtol=1e-5)


def test_results_are_the_callers_own():
    graph = small()
    plan = compile(graph, "share")
    first = plan.run(feeds_of(graph))
    kept = {name: array.copy() for name, array in first.items()}
    plan.run(feeds_of(graph, 1))
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
        array[...] = 0


def test_out_is_filled():
    graph = small()
    plan = compile(graph, "share")
    name = graph.outputs[0].name
    out = np.empty(graph.outputs[0].shape, np.float32)
    got = plan.run(feeds_of(graph), out={name: out})
    assert got[name] is out
    np.testing.assert_array_equal(out, plan.run(feeds_of(graph))[name])
    with pytest.raises(ExecutionError, match="not an output"):
        plan.run(feeds_of(graph), out={"x": out})
    with pytest.raises(ExecutionError, match="must be an array like"):
        plan.run(feeds_of(graph), out={name: out.astype(np.float64)})


def test_wrong_feeds_are_named_all_at_once():
    plan = compile(small(), "share")
    with pytest.raises(FeedError, match=r"'x' is missing: it is f32\[4,8\]; 'y' is not a feed; the feeds are x"):
        plan.run({"y": np.zeros(2)})
    with pytest.raises(FeedError, match=r"'x' is f32\[4,8\], not float64\[4, 8\]"):
        plan.run({"x": np.zeros((4, 8))})


def test_a_parameter_without_data_is_named():
    b = GraphBuilder("nodata")
    b.output(b.add(b.input("x", (2,)), b.param("w", shape=(2,))))
    with pytest.raises(FeedError, match=r"w \(f32\[2\]\).*set_param"):
        compile(b.build(), ()).run({"x": np.zeros(2, np.float32)})


def test_measure_reports_beside_the_plan():
    b = GraphBuilder("wide")
    x = b.input("x", (1 << 18,))
    for _ in range(4):
        x = b.neg(x)
    b.output(x)
    plan = compile(b.build(), ())
    measured = plan.run({"x": np.ones(1 << 18, np.float32)}, measure=True).measured
    assert measured.planned_bytes == {"host": 2 << 20}
    assert measured.arena_bytes in ({"host": 2 << 20}, {"host": None})
    assert measured.process_peak_bytes > 2 << 20


def test_host_calls_are_reported():
    b = GraphBuilder("half")
    b.output(b.relu(b.input("x", (3,), "float16")))
    graph = b.build()
    got = compile(graph, "share").run({"x": np.array([-1, 0, 2], np.float16)})
    assert got["relu"].tolist() == [0, 0, 2]
    assert len(got.host_calls) == 1
    assert "Relu" in got.host_calls[0]


def test_the_sanitizer_catches_a_clobbered_read():
    b = GraphBuilder("clobber")
    x = b.input("x", (16,))
    y, z = b.neg(x), b.exp(x)
    b.output(b.add(y, z))
    plan = compile(b.build(), ())
    assert plan.run({"x": np.ones(16, np.float32)}, sanitize=True)
    ids = {buffer.name: buffer.id for buffer in plan.program.buffers}
    slots = list(plan.slots)
    slots[ids["exp"]] = slots[ids["neg"]]
    broken = dataclasses.replace(plan, slots=tuple(slots))
    with pytest.raises(ExecutionError, match=r"reads %neg .* buffer exp owns byte"):
        broken.run({"x": np.ones(16, np.float32)}, sanitize=True)
    assert validate(broken, findings="return")


def test_updates_carry_over_and_reset():
    b = GraphBuilder("sgd")
    g = b.input("g", (2,))
    b.output(b.op("SGD", b.param("w", np.zeros(2, np.float32)), g, b.param("lr", np.array(1.0, np.float32)), name="w1"))
    graph = b.build()
    plan = compile(graph, "share")
    ones = {"g": np.ones(2, np.float32)}
    assert [run["w1"][0] for run in plan.run_many([ones] * 3)] == [-1, -2, -3]
    assert plan.state()["w"].tolist() == [-3, -3]
    plan.reset()
    assert plan.run(ones)["w1"].tolist() == [-1, -1]
    assert graph.param_data("w").tolist() == [0, 0]


def test_several_threads_share_a_plan():
    graph = small()
    plan = compile(graph, "share")
    want = [plan.run(feeds_of(graph, seed)) for seed in range(4)]
    got = [None] * 4

    def work(i):
        for _ in range(20):
            got[i] = plan.run(feeds_of(graph, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(want, got, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


def test_a_plan_goes_through_json(tmp_path):
    graph = small()
    machine = Machine.host_and("gpu", lacks={"Relu"}, dtypes={"float64": "float32"})
    plan = compile(graph, "share", machine)
    path = tmp_path / "plan.json"
    plan.save(path)
    again = load_plan(path, graph)
    assert again.program == plan.program
    assert again.slots == plan.slots
    assert dict(again.devices) == dict(plan.devices)
    assert again.decisions == plan.decisions
    assert validate(again, findings="return") == []
    want, got = plan.run(feeds_of(graph)), again.run(feeds_of(graph))
    for name, array in want.items():
        np.testing.assert_array_equal(array, got[name])


def test_a_broken_plan_file_gets_one_clear_error(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(LoadError, match="cannot read plan"):
        load_plan(path)
    for text, message in (("{", "is not JSON"), ("[]", "not a memopt plan"), ('{"memopt_plan": 1}', "malformed")):
        path.write_text(text)
        with pytest.raises(LoadError, match=message):
            load_plan(path)
    plan = compile(small(), ())
    plan.save(path)
    with pytest.raises(OptionError, match="is not the one"):
        load_plan(path, small("float64"))
    with pytest.raises(LoadError, match="cannot write"):
        plan.save(tmp_path / "missing" / "plan.json")


def test_a_plan_says_what_it_is_in_one_line():
    assert repr(compile(small(), "share")) == "<Plan of 'small': share, 4 instructions, arenas: host 224 B>"


def broken_plan(**change):
    plan = compile(small(), "share")
    slots = tuple(dataclasses.replace(s, **change) if s.space == "arena" else s for s in plan.slots)
    return dataclasses.replace(plan, slots=slots)


@pytest.mark.parametrize("offset", [-64, 1 << 40])
def test_an_access_outside_of_a_region_is_an_error_and_no_crash(offset):
    with pytest.raises(ExecutionError, match=r"instruction 0 .*: bytes \[.*\) lie outside of a region of 224 bytes"):
        broken_plan(offset=offset).run(feeds_of(small()))


def test_a_plan_from_a_file_is_not_trusted(tmp_path):
    broken_plan(offset=0).save(tmp_path / "plan.json")
    with pytest.raises(InvalidPlanError, match="1 finding"):
        load_plan(tmp_path / "plan.json")
    assert validate(load_plan(tmp_path / "plan.json", validate=False), findings="return")


def test_an_arena_that_no_system_has_room_for_is_named():
    plan = compile(small(), "share")
    devices = {"host": dataclasses.replace(plan.devices["host"], height_bytes=1 << 62)}
    with pytest.raises(ExecutionError, match=f"no room for a region of {1 << 62} bytes"):
        dataclasses.replace(plan, devices=devices).run(feeds_of(small()))


def test_a_malformed_plan_that_nobody_validated_is_an_error_too():
    plan = compile(small(), "share")
    for broken in (dataclasses.replace(plan, slots=plan.slots[:-1]), broken_plan(space="nowhere")):
        with pytest.raises(ExecutionError, match=r"memopt\.validate\(plan\) says where"):
            broken.run(feeds_of(small()))


def test_the_sanitizer_knows_strides():
    """A view in strides reads its own elements only, and those must be there."""
    b = GraphBuilder("strides")
    x = b.relu(b.input("x", (4, 4)))
    view = b.op("Slice", x, starts=(1,), ends=(3,), axes=(1,), name="view")
    wide = b.op("Expand", b.op("ReduceSum", x, axes=(0, 1), keepdims=0), shape=(4, 2), name="wide")
    b.output(x, b.mul(view, wide, name="y"))
    plan = compile(b.build(), ("share-views",))
    feeds = {"x": np.ones((4, 4), np.float32)}
    operands = [o for i in plan.program.instructions for o in getattr(i, "inputs", ()) if o is not None]
    assert sum(o.strides is not None for o in operands) == 2
    np.testing.assert_array_equal(plan.run(feeds, sanitize=True)["y"], np.full((4, 2), 16))
    ids = {buffer.name: buffer.id for buffer in plan.program.buffers}
    for column in range(4):  # the sum over element (0, column), which the view reads, or does not
        slots = list(plan.slots)
        slots[ids["reduce_sum"]] = dataclasses.replace(slots[ids["relu"]], offset=4 * column, size=4)
        broken = dataclasses.replace(plan, slots=tuple(slots))
        if column in (1, 2):
            match = rf"reads %view from byte 4 of .* on, but buffer reduce_sum owns byte {4 * column}"
            with pytest.raises(ExecutionError, match=match):
                broken.run(feeds, sanitize=True)
        else:
            assert broken.run(feeds, sanitize=True)["y"].tolist() == [[16, 16]] * 4


def test_what_an_operand_is_called_does_not_matter():
    """Names are for people: a call whose view in strides bears the name of a value of another rank runs as before."""
    b = GraphBuilder()
    h = b.op("Relu", b.input("x", (4, 6)), name="h")
    y = b.op("MatMul", b.op("Transpose", h, name="t"), h, name="y")
    b.output(y, b.op("Reshape", y, shape=(36,), name="flat"))
    plan = compile(b.build(), ["share-views"])
    calls = list(plan.program.instructions)
    at = next(i for i, one in enumerate(calls) if getattr(one, "node", "") == "t")
    (operand,) = calls[at].outputs
    calls[at] = dataclasses.replace(calls[at], outputs=(dataclasses.replace(operand, value="flat"),))
    named = dataclasses.replace(plan, program=dataclasses.replace(plan.program, instructions=tuple(calls)))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(named.run({"x": x})["y"], plan.run({"x": x})["y"])
