"""How far does sharing go? Heights of whole networks, and what Concat still copies.

    python benchmarks/sharing.py [NETWORK ...] [--seed 3] [--no-run]

The networks are the `light_*` files of the onnx package (random weights), in file order, at batch 1, on one host
device; "eight" is a Concat of eight products of 4 MiB each, and a product of that. Columns: the arena's height without
passes, under `share`, under `best`, under `best` with outputs in the caller's arrays, and the floor: the bytes that no
sharing can do without in this order (`memopt.analysis.needed_bytes`, feeds and parameters apart, outputs not); then the
bytes that Concats copy in one run, under `share` and `best`, and the time of one run, under these and `caller`. Every
plan is validated, and its results are compared: with those of `share` bit by bit, and with the reference. "eight" must
take 32 MiB, the Concat, with outputs in the caller's arrays.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import onnx

import memopt
from memopt.analysis import joined_at, needed_bytes
from memopt.ir import Graph
from memopt.lowering import Call

LIGHT = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
NETWORKS = ("squeezenet", "inception_v1", "inception_v2", "shufflenet", "densenet121", "resnet50", "eight")
MIB = 2.0**20


def eight() -> Graph:
    """A Concat of eight products of 4 MiB each, then a product of it with one column."""
    rng = np.random.default_rng(0)
    b = memopt.GraphBuilder("eight")
    x = b.input("x", (1024, 256))
    parts = [b.matmul(x, b.param(f"w{i}", rng.standard_normal((256, 1024)).astype(np.float32))) for i in range(8)]
    whole = b.op("Concat", *parts, axis=0)
    b.output(b.matmul(whole, b.param("v", rng.standard_normal((1024, 1)).astype(np.float32))))
    return b.build()


def load(name: str, seed: int) -> Graph:
    """The network of that name."""
    if name == "eight":
        return eight()
    return memopt.load(os.path.join(LIGHT, f"light_{name}.onnx"), weights="random", seed=seed)


def floor(graph: Graph) -> int:
    """Bytes of the arena that every storage needs, in the listed order."""
    apart = sum(value.nbytes for value in (*graph.inputs, *graph.params))
    return int(needed_bytes(graph).max()) - apart


def copied_bytes(plan: memopt.Plan) -> int:
    """Bytes that the plan's Concats move in one run: their inputs that do not lie in the result already."""
    total = 0
    for call in plan.program.instructions:
        if not isinstance(call, Call) or call.op != "Concat":
            continue
        (result,) = call.outputs
        node = plan.graph.node(call.node)
        places = {index: offset for index, _, offset in joined_at(plan.graph.value(result.value))}
        for index, operand in enumerate(call.inputs):
            offset = places.get(index)
            there = offset is not None and (operand.buffer, operand.offset) == (result.buffer, result.offset + offset)
            total += 0 if there else node.inputs[index].nbytes
    return total


def milliseconds(plan: memopt.Plan, feeds: dict[str, np.ndarray]) -> float:
    """The fastest of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        plan.run(feeds)
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def checked(graph: Graph, plans: dict[str, memopt.Plan], seed: int) -> list[float]:
    """Milliseconds of a run of `share`, `best` and `caller`; raises where results are not what they must be."""
    rng = np.random.default_rng(seed)
    feeds = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    want, _ = memopt.run_reference(graph, feeds)
    share, best, caller = (plans[name].run(feeds) for name in ("share", "best", "caller"))
    for name, array in want.items():
        if not np.array_equal(share[name], best[name]) or not np.array_equal(share[name], caller[name]):
            raise SystemExit(f"{graph.name}: %{name} differs between share, best and caller")
        error = float(np.abs(best[name] - array).max() / np.abs(array).max())
        if error > 1e-3:
            raise SystemExit(f"{graph.name}: %{name} is off by {error}")
    return [milliseconds(plans[name], feeds) for name in ("share", "best", "caller")]


def row(name: str, seed: int, run: bool) -> str:
    """One line of the table."""
    graph = load(name, seed)
    plans = {strategy: memopt.compile(graph, strategy) for strategy in ("none", "share", "best")}  # each is validated
    plans["caller"] = memopt.compile(graph, "best", outputs="caller")
    heights = [plans[strategy].devices["host"].height_bytes / MIB for strategy in plans]
    if name == "eight" and heights[-1] != 32:
        raise SystemExit(f"eight: the arena has {heights[-1]} MiB with outputs in the caller's arrays, not 32")
    copies = [copied_bytes(plans[strategy]) / MIB for strategy in ("share", "best")]
    cells = [*(f"{h:9.3f}" for h in (*heights, floor(graph) / MIB)), *(f"{c:11.3f}" for c in copies)]
    cells += [f"{ms:10.1f}" for ms in checked(graph, plans, seed)] if run else []
    return f"{name:13}" + "".join(cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--no-run", action="store_true", help="heights only")
    args = parser.parse_args()
    heights, times = ["none", "share", "best", "caller", "floor"], ["ms share", "ms best", "ms caller"]
    head = heights, ["copy share", "copy best"], times
    widths = (9, 11, 10)
    groups = list(zip(head, widths, strict=True))[: 2 if args.no_run else 3]
    print("MiB".ljust(13) + "".join(f"{title:>{width}}" for titles, width in groups for title in titles))
    for name in args.networks:
        print(row(name, args.seed, not args.no_run), flush=True)


if __name__ == "__main__":
    main()
