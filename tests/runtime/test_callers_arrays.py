"""The caller's arrays: which are used in place, which are copied and why, and what must never happen to them."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from memopt import GraphBuilder, Machine, compile, load_plan, run_reference, validate
from memopt.errors import ExecutionError, FeedError
from memopt.runtime import Executor
from memopt.runtime.checksum import checksum


def chain(dtype="float32"):
    """x -> relu -> r -> neg -> y, x + y -> z; outputs y and z."""
    b = GraphBuilder("chain")
    x = b.input("x", (4, 8), dtype)
    y = b.neg(b.relu(x, name="r"), name="y")
    b.output(y, b.add(x, y, name="z"))
    return b.build()


def feed(seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal((4, 8)).astype(dtype)


def right(x):
    y = -np.maximum(x, 0)
    return {"y": y, "z": x + y}


def check(got, x):
    for name, array in right(x).items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


class TestFeeds:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda x: x, ""),
            (lambda x: x.tolist(), "dtype"),
            (lambda x: np.asfortranarray(x), "it is not C-contiguous"),
            (lambda x: np.repeat(x, 2, axis=1)[:, ::2], "it is not C-contiguous"),
            (lambda x: x.astype(x.dtype.newbyteorder()), "its byte order is not the machine's"),
            (lambda x: misaligned(x), "it is not aligned to its items"),
        ],
    )
    def test_how_an_array_is_used(self, make, why):
        x = feed()
        plan, array = compile(chain()), make(x)
        if why == "dtype":
            with pytest.raises(FeedError):
                plan.run({"x": array})
            return
        got = plan.run({"x": array})
        check(got, x)
        assert got.feeds == {"x": f"copied: {why}" if why else "in place"}
        np.testing.assert_array_equal(array, x)

    def test_by_request(self):
        x = feed()
        got = compile(chain(), donate=["x"]).run({"x": x}, copy_feeds=True)
        assert got.feeds == {"x": "copied: copy_feeds=True"}
        np.testing.assert_array_equal(x, feed())

    def test_a_read_only_array_is_read_where_it_lies(self):
        x = feed()
        x.flags.writeable = False
        assert compile(chain()).run({"x": x}).feeds == {"x": "in place"}
        got = compile(only_relu(), donate=["x"]).run({"x": x})
        assert got.feeds == {"x": "copied: it is read-only, and the plan writes its bytes"}

    def test_a_view_onto_itself_is_a_write(self):
        b = GraphBuilder()
        r = b.reshape(b.input("x", (4, 8)), shape=(32,), name="r")
        b.output(b.neg(r, name="y"))
        plan, x = compile(b.build(), "share"), feed()
        assert plan.run({"x": x}).feeds == {"x": "in place"}
        x.flags.writeable = False
        got = plan.run({"x": x})
        np.testing.assert_array_equal(got["y"], -x.ravel())
        assert got.feeds["x"] in ("in place", "copied: it is read-only, and the plan writes its bytes")

    def test_a_donated_array_is_overwritten_and_may_be_refilled(self):
        plan, x = compile(only_relu(), donate=["x"]), feed()
        want = np.maximum(x, 0)
        np.testing.assert_array_equal(plan.run({"x": x})["y"], want)
        np.testing.assert_array_equal(x, want)
        with pytest.raises(FeedError, match="consumed"):
            plan.run({"x": x})
        x[0, 0] = np.nextafter(x[0, 0], np.float32(2))  # one bit is enough
        np.testing.assert_array_equal(plan.run({"x": x})["y"], np.maximum(x, 0))

    def test_memory_that_was_freed_is_forgotten(self):
        plan = compile(only_relu(), donate=["x"])
        for _ in range(50):
            x = np.ones((4, 8), np.float32)  # as a rule where the last one was, with the bytes that it had
            plan.run({"x": x})
            del x

    def test_a_failed_run_consumes_too(self):
        plan, x = compile(only_relu(), donate=["x"]), feed()
        executor = plan.executor()
        executor._run_all, real = fail, executor._run_all
        with pytest.raises(ExecutionError, match="on purpose"):
            plan.run({"x": x})
        executor._run_all = real
        with pytest.raises(FeedError, match="consumed"):
            plan.run({"x": x})

    def test_the_state_of_a_loop_lies_in_one_array(self):
        """The output is wanted in the donated array, where it lies anyway: nothing is copied, nothing is consumed."""
        b = GraphBuilder()
        b.output(b.add(b.input("s", (3,)), b.input("d", (3,)), name="next"))
        for outputs in ("arena", "caller"):
            plan = compile(b.build(), donate=["s"], outputs=outputs)
            s, d = np.zeros(3, np.float32), np.float32([1, 2, 3])
            for step in range(1, 4):
                got = plan.run({"s": s, "d": d}, out={"next": s})
                assert s.tolist() == [step, 2 * step, 3 * step]
                assert (got.feeds, got.outputs) == ({"s": "in place", "d": "in place"}, {"next": "in place"})
            s[...] = 0
            plan.run({"s": s, "d": d}, out={"next": s}, copy_feeds=True)
            assert s.tolist() == [1, 2, 3]


class TestOutputs:
    def test_a_fresh_array_in_each_run(self):
        plan = compile(chain(), outputs="caller")
        first, second = plan.run({"x": feed(0)}), plan.run({"x": feed(1)})
        check(first, feed(0))
        check(second, feed(1))
        assert first.outputs == {"y": "in place", "z": "in place"}
        assert plan.run({"x": feed(2)}).outputs == first.outputs
        check(first, feed(0))

    @pytest.mark.parametrize("outputs", ["arena", "caller"])
    def test_arrays_that_are_given(self, outputs):
        plan, x = compile(chain(), outputs=outputs), feed()
        plain = {name: np.empty((4, 8), np.float32) for name in "yz"}
        got = plan.run({"x": x}, out=plain)
        check(plain, x)
        assert got["y"] is plain["y"]
        assert got.outputs["y"] == ("in place" if outputs == "caller" else "copied: outputs='arena'")
        wide = np.zeros((4, 16), np.float32)
        got = plan.run({"x": x}, out={"y": wide[:, :8], "z": wide[:, 8:]})  # neighbours that share no byte
        check({"y": wide[:, :8], "z": wide[:, 8:]}, x)
        why = {"caller": "it is not C-contiguous", "arena": "outputs='arena'"}[outputs]
        assert got.outputs["z"] == f"copied: {why}"

    @pytest.mark.parametrize("outputs", ["arena", "caller"])
    def test_arrays_that_overlap(self, outputs):
        plan, x = compile(chain(), outputs=outputs), feed()
        memory = np.zeros((6, 8), np.float32)
        for other in (memory[:4], memory[2:], memory[3::-1]):
            with pytest.raises(ExecutionError, match="out='y' and out='z' share memory"):
                plan.run({"x": x}, out={"y": memory[:4], "z": other})
        memory[:4] = x
        got = plan.run({"x": memory[:4]}, out={"z": memory[2:]})
        np.testing.assert_array_equal(memory[2:], right(x)["z"])
        assert got.feeds == {"x": "copied: it shares memory with out='z'"}
        y = x.copy()
        got = plan.run({"x": y}, out={"y": y})
        check({"y": y, "z": got["z"]}, x)

    def test_wrong_arrays_are_refused(self):
        plan, x = compile(chain(), outputs="caller"), feed()
        locked = np.empty((4, 8), np.float32)
        locked.flags.writeable = False
        for name, array, why in (
            ("x", x, "is not an output; the outputs are y, z"),
            ("y", np.empty((8, 4), np.float32), r"must be an array like f32\[4,8\]"),
            ("y", [[0.0] * 8] * 4, "must be an array like"),
            ("y", locked, "is read-only"),
        ):
            with pytest.raises(ExecutionError, match=why):
                plan.run({"x": x}, out={name: array})

    def test_kept_values_and_measures(self):
        plan, x = compile(chain(), "best", outputs="caller", keep=["r"]), feed()
        got = plan.run({"x": x}, measure=True, sanitize=True, out={"r": np.empty((4, 8), np.float32)})
        check(got, x)
        np.testing.assert_array_equal(got.kept["r"], np.maximum(x, 0))
        assert list(got.outputs) == ["y", "z", "r"]
        check(plan.run({"x": feed(3)}), feed(3))
        check(got, x)

    def test_the_sanitizer_watches_them(self):
        plan = compile(chain(), (), outputs="caller")
        y, instructions = plan.program.results[0].operand, list(plan.program.instructions)
        at = next(i for i, one in enumerate(instructions) if getattr(one, "node", "") == "y")
        instructions[at] = dataclasses.replace(instructions[at], inputs=(y,))
        broken = dataclasses.replace(plan, program=dataclasses.replace(plan.program, instructions=tuple(instructions)))
        with pytest.raises(ExecutionError, match=r"reads %y .* of host's output:y.*, but nobody has written byte 0"):
            broken.run({"x": feed()}, sanitize=True)


class TestWhoMayTouchThem:
    def test_a_plan_that_was_not_validated_copies(self, tmp_path):
        plan = compile(chain(), donate=["x"], outputs="caller")
        plan.save(tmp_path / "plan.json")
        others = [
            compile(chain(), donate=["x"], outputs="caller", validate=False),
            dataclasses.replace(plan),
            load_plan(tmp_path / "plan.json", validate=False),
        ]
        for other in others:
            x, out = feed(), np.zeros((4, 8), np.float32)
            got = other.run({"x": x}, out={"z": out})
            np.testing.assert_array_equal(x, feed())
            check(got, x)
            assert got["z"] is out
            why = "copied: the plan was not validated"
            assert (got.feeds["x"], got.outputs["y"], got.outputs["z"][:6]) == (why, why, "copied")
            assert not other.is_validated
        loaded = load_plan(tmp_path / "plan.json")
        assert loaded.run({"x": feed()}).outputs["z"] == plan.run({"x": feed()}).outputs["z"]
        assert loaded.is_validated

    def test_a_wrong_plan_writes_into_no_array(self):
        graph = only_relu()
        graph.storage.share(graph.storage.variable(graph.value("y")), graph.storage.buffer(graph.value("x")))
        plan, x = compile(graph, (), validate=False), feed()
        assert [f.kind for f in validate(plan, findings="return")] == ["pinned-write", "lost-feed"][:1]
        plan.run({"x": x})
        Executor(plan).run({"x": x})
        np.testing.assert_array_equal(x, feed())

    def test_parameters_do_not_lie_in_donated_arrays(self):
        w, b = feed(5), GraphBuilder()
        b.output(b.add(b.relu(b.input("x", (4, 8)), name="r"), b.param("w", shape=(4, 8)), name="y"))
        graph = b.build()
        graph.set_param("w", w, copy=False)
        plan = compile(graph, donate=["x"])
        got = plan.run({"x": w})
        assert got.feeds == {"x": "copied: it shares memory with parameter %w"}
        np.testing.assert_array_equal(got["y"], np.maximum(w, 0) + w)
        np.testing.assert_array_equal(w, feed(5))

    def test_nothing_of_the_callers_is_held_after_a_run(self):
        import weakref

        plan = compile(chain(), outputs="caller", donate=["x"])
        x, out = feed(), np.empty((4, 8), np.float32)
        refs = [weakref.ref(x), weakref.ref(out)]
        plan.run({"x": x}, out={"z": out})
        del x, out
        assert [ref() for ref in refs] == [None, None]

    def test_host_calls_work_on_them(self):
        plan, x = compile(chain("float16"), (), outputs="caller"), feed(dtype="float16")
        for _ in range(3):
            out = np.empty((4, 8), np.float16)
            got = plan.run({"x": x}, out={"z": out})
            assert len(got.host_calls) == 3
            assert (got.feeds, set(got.outputs.values())) == ({"x": "in place"}, {"in place"})
            check({"y": got["y"], "z": out}, x)
            x = feed(1, "float16")

    def test_transfers_start_and_end_there(self):
        machine = Machine.host_and("gpu", lacks={"Add"})
        plan = compile(chain(), "best", machine, outputs="caller")
        for seed in range(3):
            got = plan.run({"x": feed(seed)})
            check(got, feed(seed))
        assert got.outputs == {"y": "copied: it ends on gpu", "z": "in place"}
        assert plan.devices["host"].output_bytes == 128
        assert plan.devices["gpu"].output_bytes == 0

    def test_several_threads(self):
        plan = compile(chain(), "best", outputs="caller", donate=["x"])
        faults = []

        def work(seed):
            for turn in range(40):
                x = feed(seed)
                out = {"y": np.empty((4, 8), np.float32)} if turn % 2 else {}
                got = plan.run({"x": x}, out=out)
                if any(not np.array_equal(got[name], want) for name, want in right(feed(seed)).items()):
                    faults.append((seed, turn))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []

    def test_many_runs(self):
        plan = compile(chain(), outputs="caller")
        many = [{"x": feed(seed)} for seed in range(3)]
        for got, given in zip(plan.run_many(many), many, strict=True):
            check(got, given["x"])
            assert run_reference(plan.graph, given)[0].keys() == got.keys()


def misaligned(x):
    raw = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    return raw


def only_relu():
    b = GraphBuilder("relu")
    b.output(b.relu(b.input("x", (4, 8)), name="y"))
    return b.build()


def fail():
    raise ExecutionError("on purpose")


@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 13, 64, 1001])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_checksums_see_every_byte_and_its_place(size, dtype):
    rng = np.random.default_rng(size)
    array = rng.integers(0, 99, size).astype(dtype)
    assert checksum(array) == checksum(array.copy())
    for at in rng.integers(0, max(size, 1), 8) if size else ():
        other = array.copy()
        other[at] += 1
        assert checksum(other) != checksum(array)
    if size > 1 and array[0] != array[-1]:
        other = array.copy()
        other[[0, -1]] = other[[-1, 0]]
        assert checksum(other) != checksum(array)


def test_a_plan_that_forgets_a_feed_is_no_crash():
    plan = compile(chain(), validate=False)
    program = dataclasses.replace(plan.program, feeds=())
    broken = dataclasses.replace(plan, program=program)
    assert validate(broken, findings="return")
    assert broken.run({"x": feed()}).feeds == {}
