"""Does the validator catch every harmful mutant? Thousands of plans, each broken in one way, are run on real bytes.

    python -m benchmarks.mutations [--mutants 3000] [--seed 0]

A mutant is *harmful* if under some feeds any bit differs from what the unmutated plan gives: of an output, of a
parameter after the step, of a feed that is not donated. It runs on arenas full of garbage, and freed bytes are
poisoned. A mutant that would touch bytes outside of its region, or that cannot be loaded at all, is not run: it must be
rejected. A *miss* is a harmful mutant, or one that cannot be run, in which the validator finds nothing.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import passes
from benchmarks.mutants import MUTATORS
from memopt import Graph, GraphBuilder, Machine, Plan, compile, validate
from memopt.errors import MemoptError
from memopt.lowering.program import Call, Free
from memopt.runtime.executor import Executor

__all__ = ["Tally", "base_plan", "judge", "mutants", "run"]

FEEDS = 3
STEPS = 2
MACHINES = {
    "host": Machine.host_only(alignment=16),
    "gpu": Machine.host_and("gpu", lacks={"Add", "SGD"}, alignment=16),
    "gpu, float32": Machine.host_and("gpu", lacks={"Mul"}, alignment=16, dtypes={"float64": "float32"}),
    "gpu, NHWC": Machine.host_and("gpu", lacks={"Relu"}, alignment=16, layouts={"Conv": "NHWC"}),
}


class UnrunnableError(Exception):
    """The mutant cannot be loaded, or would touch bytes outside of its region."""


# -- plans that are right ---------------------------------------------------------------------------------------------


def base_plan(seed: int) -> Plan:
    """A plan that is right: few kinds of ops and shapes, all machines, strategies and policies."""
    rng = random.Random(seed)
    name = rng.choice(sorted(MACHINES))
    graph = image_graph(rng) if name == "gpu, NHWC" else matrix_graph(rng, "float64" if "32" in name else "float32")
    chosen = rng.choice([*sorted(passes.STRATEGIES), "share"])
    strategy = passes.STRATEGIES[chosen]
    if chosen != "rename" and rng.random() < 0.7:  # a name stands for one order of bytes
        strategy = (passes.ShareViews(), *strategy)
    policy = rng.choice(["publish", "publish", "outer"])
    options: dict[str, Any] = {"share_transfers": rng.random() < 0.3, "outputs": rng.choice(["arena", "caller"])}
    return compile(graph, strategy, MACHINES[name], policy, pack_seconds=0, validate=False, **options)


_ANY = ("unary", "unary", "Add", "Mul", "flat")
_OF_4_4 = ("split", "join", "product", "SGD", "MatMul", "Softmax")
_VIEWS = ("turned", "turned", "columns", "steps", "row", "column", "shuffled")


def matrix_graph(rng: random.Random, dtype: str) -> Graph:
    """Chains, joins, views, splits, matrix products and updates of [4, 4]."""
    b, data = GraphBuilder(), np.random.default_rng(rng.randrange(1 << 30))
    pool = [b.input("x", (4, 4), dtype, donated=rng.random() < 0.5), b.input("y", (4, 4), dtype)]
    weights = [b.param(name, data.uniform(-2, 2, (4, 4)).astype(dtype)) for name in ("w", "v")]
    rate = b.param("r", np.asarray(0.25, dtype))
    for _ in range(rng.randint(3, 8)):
        value = rng.choice(pool[-4:])
        other = rng.choice([v for v in pool if v.shape == value.shape])
        job, which = rng.choice([*_ANY, *_OF_4_4, *_VIEWS]), rng.randrange(2)
        if job == "SGD" and value.shape == (4, 4):
            weights[which] = b.op("SGD", weights[which], value, rate)
        elif job in _VIEWS and value.shape == (4, 4):
            pool.append(_viewed(b, job, value))
        elif job in _ANY or value.shape == (4, 4):
            pool.append(_made(b, job, (value, other, weights[which]), rng))
    return _finished(b, pool, rng)


def _made(b: GraphBuilder, job: str, operands: tuple[Any, Any, Any], rng: random.Random) -> Any:
    """What a job makes of a value, another of its shape, and a weight."""
    value, other, weight = operands
    match job:
        case "unary":
            return b.op(rng.choice(["Neg", "Relu"]), value)
        case "flat":
            return b.reshape(value, shape=(value.type.num_elements,) if len(value.shape) == 2 else (4, 4))
        case "split":
            halves = b.op("Split", value, outputs=2, axis=0, split=(2, 2))
            return b.concat(halves[1], b.neg(halves[0]), axis=0)
        case "join":
            joined = b.concat(b.concat(value, other, axis=0), b.neg(value), axis=0)
            return b.op("Slice", joined, starts=(2,), ends=(6,), axes=(0,))
        case "product":
            return b.matmul(weight, b.matmul(value, other))
        case "MatMul":
            return b.matmul(value, weight)
        case "Softmax":
            return b.op("Softmax", value)
    return b.op(job, value, other)


def _viewed(b: GraphBuilder, job: str, value: Any) -> Any:
    """A view of [4, 4] that may lie in strides, or what is computed from some."""
    turned = b.op("Transpose", value)
    match job:
        case "columns":
            left, right = b.op("Split", value, outputs=2, axis=1, split=(2, 2))
            return b.matmul(left, b.op("Transpose", right))
        case "steps":
            rows = b.op("Slice", value, starts=(1,), ends=(4,), axes=(0,), steps=(2,))
            return b.concat(rows, b.neg(rows), axis=0)
        case "row" | "column":
            axis = int(job == "column")
            one = b.op("Slice", value, starts=(1,), ends=(2,), axes=(axis,))
            return b.op("Expand", one, shape=(4, 4))
        case "shuffled":
            return b.reshape(b.op("Transpose", b.reshape(turned, shape=(2, 2, 4)), perm=(2, 0, 1)), shape=(4, 4))
    return turned


def image_graph(rng: random.Random) -> Graph:
    """Convolutions in a layout of their own, between ops that take any."""
    b, data = GraphBuilder(), np.random.default_rng(rng.randrange(1 << 30))
    pool = [b.input("x", (1, 2, 2, 4), donated=rng.random() < 0.5), b.input("y", (1, 2, 2, 4))]
    weight = b.param("w", data.uniform(-2, 2, (2, 2, 3, 3)).astype(np.float32))
    for _ in range(rng.randint(2, 6)):
        value = rng.choice(pool[-3:])
        match rng.choice(["Conv", "Conv", "Relu", "Neg", "Add"]):
            case "Conv":
                pool.append(b.conv(value, weight, pads=(1, 1, 1, 1)))
            case "Add":
                pool.append(b.add(value, rng.choice(pool)))
            case op:
                pool.append(b.op(op, value))
    return _finished(b, pool, rng)


def _finished(b: GraphBuilder, pool: list[Any], rng: random.Random) -> Graph:
    made = [v for v in pool if v.producer is not None] or [b.neg(pool[0])]
    b.output(*[v for v in made if not v.uses] or made[-1:])
    if rng.random() < 0.3:
        b.output(*[v for v in rng.sample(made, 1) if v not in b.graph.outputs])
    return b.build()


# -- runs -------------------------------------------------------------------------------------------------------------


def observe(plan: Plan, seed: int) -> list[dict[str, bytes]]:
    """All that a user can see of `STEPS` steps for each of `FEEDS` random feeds; raises `UnrunnableError`."""
    kept = {value.name: np.array(plan.graph.param_data(value)) for value in plan.graph.params}
    try:
        executor = Executor(plan)
        _check_inside(executor)
        return [_step(executor, seed + i, i % STEPS == 0) for i in range(FEEDS * STEPS)]
    except (KeyError, IndexError, ValueError, TypeError, StopIteration, MemoptError) as error:
        raise UnrunnableError(repr(error)) from None
    finally:
        for name, array in kept.items():  # parameters that are not updated are used where they are
            np.copyto(plan.graph.param_data(name), array)  # type: ignore[arg-type]


def _step(executor: Executor, seed: int, first: bool) -> dict[str, bytes]:
    plan, rng = executor.plan, np.random.default_rng(seed)
    if first:
        executor.reset()
    for region in (region for (_, space), region in executor.regions.items() if _is_undefined(space)):
        region.data[...] = rng.integers(0, 256, region.data.size, np.uint8)
    feeds = np.random.default_rng([seed, 1])
    arrays = {v.name: feeds.uniform(-2, 2, v.shape).astype(v.dtype) for v in plan.graph.inputs}
    for result in plan.program.feeds:
        executor._view(result.operand, result.name)[...] = arrays[result.name]
    for position, instruction in enumerate(plan.program.instructions):
        executor.step(position)
        if isinstance(instruction, Free):
            slot = plan.slots[instruction.buffer]
            data = executor.regions[slot.device, slot.space].data[slot.offset : slot.offset + slot.size]
            data[...] = rng.integers(0, 256, data.size, np.uint8)
    seen = {f"output {name}": array.tobytes() for name, array in executor._fetch({}).items()}
    seen |= _callers_arrays(executor, rng)
    seen |= {f"parameter {name}": array.tobytes() for name, array in executor.state().items()}
    seen |= {f"data {v.name}": executor._initial[v.name].tobytes() for v in plan.graph.params}
    for value in plan.graph.inputs:
        if value.name not in plan.graph.donated:
            region = executor.regions[plan.machine.host.name, f"feed:{value.name}"]
            seen[f"feed {value.name}"] = region.data.tobytes()
    return seen


def _is_undefined(space: str) -> bool:
    """Whether the space holds nothing when a run begins."""
    return space in ("arena", "scratch") or space.startswith("output:")


def _callers_arrays(executor: Executor, rng: np.random.Generator) -> dict[str, bytes]:
    """What is in the caller's arrays after a run that takes the plan for right: they stand for whole spaces."""
    plan, last = executor.plan, {}
    for result in plan.program.results:
        if plan.program.buffers[result.operand.buffer].space == "output":
            slot = plan.slots[result.operand.buffer]
            last[slot.device, slot.space] = result.name
            if slot.size != plan.graph.value(result.name).nbytes:
                raise UnrunnableError(f"the array of %{result.name} has not the {slot.size} bytes of its space")
    seen = {}
    for result in plan.program.results:
        slot = plan.slots[result.operand.buffer]
        key = slot.device, slot.space
        if key in last:  # of two outputs in one space, the first has an array that nobody writes
            data = executor.regions[key].data
            seen[f"output {result.name}"] = data.tobytes() if last[key] == result.name else rng.bytes(data.size)
    return seen


def _check_inside(executor: Executor) -> None:
    """Every access of every row must stay inside of its region, and be aligned to its elements."""
    plan = executor.plan
    for row in executor._loaded.rows:
        if row.call is None:
            continue
        instruction: Any = plan.program.instructions[row.instruction]
        call = isinstance(instruction, Call)
        sides = {
            "in": instruction.inputs if call else (instruction.source,),
            "out": instruction.outputs if call else (instruction.target,),
        }
        for arg, address in zip(row.call.arrays, row.addresses, strict=True):
            if arg.role == "scratch":
                region = executor.regions[instruction.device, "scratch"]
            else:
                slot = plan.slots[sides[arg.role][arg.index].buffer]
                region = executor.regions[slot.device, slot.space]
            size = int(np.prod(arg.shape)) * np.dtype(arg.dtype).itemsize
            start = address - region.address
            if start < 0 or start + size > region.data.size or start % np.dtype(arg.dtype).itemsize:
                raise UnrunnableError(f"{row.label} touches [{start}, {start + size}) of {region.data.size} bytes")


# -- the verdicts -----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """kind -> number of mutants with each verdict; the misses in full."""

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)
    plans: int = 0

    def count(self, *verdicts: str) -> int:
        return sum(counter[verdict] for counter in self.verdicts.values() for verdict in verdicts)

    def __str__(self) -> str:
        names = ("mutants", "harmful", "caught", "outside", "caught", "harmless", "rejected")
        lines = [f"{'kind':36}" + "".join(f"{name:>10}" for name in names)]
        for kind, c in sorted(self.verdicts.items()):
            lines.append(self._line(kind, c))
        lines.append(self._line("all", sum(self.verdicts.values(), Counter())))
        return "\n".join(lines)

    @staticmethod
    def _line(kind: str, c: Counter[str]) -> str:
        harmful, outside = c["harmful"] + c["harmful, missed"], c["outside"] + c["outside, missed"]
        harmless = c["harmless"] + c["harmless, rejected"]
        figures = (c.total(), harmful, c["harmful"], outside, c["outside"], harmless, c["harmless, rejected"])
        return f"{kind:36}" + "".join(f"{figure:>10}" for figure in figures)


def judge(base: list[dict[str, bytes]], mutant: Plan, seed: int) -> str:
    """"harmful", "outside" or "harmless"; with ", missed" or ", rejected" where the validator says otherwise."""
    rejected = bool(validate(mutant, findings="return"))
    try:
        harm = "harmful" if observe(mutant, seed) != base else "harmless"
    except UnrunnableError:
        harm = "outside"
    if harm == "harmless":
        return "harmless, rejected" if rejected else harm
    return harm if rejected else f"{harm}, missed"


def mutants(plan: Plan, rng: random.Random, count: int) -> Iterator[tuple[str, Plan]]:
    """`count` mutants of `plan`, of kinds drawn at random; those that changed nothing are left out."""
    for _ in range(count):
        kind = rng.choice(sorted(MUTATORS))
        mutant = MUTATORS[kind](plan, rng)
        if mutant is not None and not _same(mutant, plan):
            yield kind, mutant


def _same(a: Plan, b: Plan) -> bool:
    return (a.program, a.slots, a.devices) == (b.program, b.slots, b.devices) and str(a.graph) == str(b.graph)


def run(number: int, seed: int = 0, each: int = 20) -> Tally:
    """Judge (at least) `number` mutants, about `each` of a plan."""
    tally = Tally()
    while sum(counter.total() for counter in tally.verdicts.values()) < number:
        at = seed * 1_000_003 + tally.plans
        tally.plans += 1
        plan = base_plan(at)
        found = validate(plan, findings="return")
        base = observe(plan, at)
        if found or base != observe(plan, at):
            tally.misses.append(f"plan {at}: rejected, though it is right: {found}")
            continue
        rng = random.Random(at)
        for kind, mutant in mutants(plan, rng, each):
            verdict = judge(base, mutant, at)
            tally.verdicts.setdefault(kind, Counter())[verdict] += 1
            if verdict.endswith("missed"):
                tally.misses.append(f"plan {at}, {kind}: {verdict}")
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tally = run(options.mutants, options.seed)
    print(tally)
    print(f"{tally.plans} plans, {time.perf_counter() - start:.1f} s; misses: {len(tally.misses)}")
    for miss in tally.misses[:20]:
        print(miss)


if __name__ == "__main__":
    main()
