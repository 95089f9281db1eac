"""Packing against omnimalloc, in one run: the public instances, guillotine cuts and random buffers.

    python benchmarks/packing.py [--data ../shared/data/packing] [--time-limit 3] [--no-peers] [--only hard,traces]

Ratios are height / lower bound, times wall seconds, warm (the engines are compiled before the first row). omnimalloc's
`omni` is its default; `super6` is its `supermalloc` with six threads and the same time limit. Peers run in a child
process of at most 60 s and 6 GiB. Every one of our plans is validated; its time is not counted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from memopt.packing import (
    PackingBuffer,
    PackingPlan,
    PackingProblem,
    lower_bound,
    pack,
    pack_arrays,
    read_csv,
    validate_packing,
)

HARD = ("A", "B", "C", "D", "E", "G", "H", "I", "K")
TRACES = ("deep_speech", "person_detection", "resnet50", "G_1", "bert_large", "pangu_2.6B", "S_1")
CAPACITY = dict.fromkeys(HARD, 1048576) | {"C": 1039360}
PEER_SECONDS, PEER_BYTES = 60, 6 << 30


def guillotine(num: int, seed: int, side: int = 10**6) -> PackingProblem:
    """A square of time × bytes, cut; the optimum is `side`."""
    rng = random.Random(seed)
    boxes = [(-side * side, 0, side, 0, side)]
    while len(boxes) < num:
        _, a, b, c, d = heapq.heappop(boxes)
        if (rng.random() < 0.5 and b - a > 1) or d - c < 2:
            cut = rng.randrange(a + 1, b)
            parts = ((a, cut, c, d), (cut, b, c, d))
        else:
            cut = rng.randrange(c + 1, d)
            parts = ((a, b, c, cut), (a, b, cut, d))
        for p, q, r, s in parts:
            heapq.heappush(boxes, (-(q - p) * (s - r), p, q, r, s))
    rng.shuffle(boxes)
    return PackingProblem(tuple(PackingBuffer(str(i), s - r, p, q) for i, (_, p, q, r, s) in enumerate(boxes)))


def random_arrays(num: int, seed: int = 1) -> tuple[Any, Any, Any]:
    """Starts, ends and sizes; about twenty buffers are live at once."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 10 * num, num)
    return start, start + rng.geometric(1 / 200, num), rng.integers(1, 10**6, num)


_CHILD = """
import json, resource, sys, time
kind, limit, size = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (size, size))
import omnimalloc
from omnimalloc.allocators.supermalloc import SupermallocAllocator
allocator = SupermallocAllocator(timeout=limit, num_threads=6) if kind == "super6" else kind
given = [omnimalloc.Allocation(id=i, size=s, start=a, end=b) for i, (a, b, s) in enumerate(json.load(sys.stdin))]
began = time.perf_counter()
placed = omnimalloc.allocate(given, allocator)
print(max(p.offset + p.size for p in placed), time.perf_counter() - began)
"""


def peer(kind: str, problem: PackingProblem, limit: float) -> str:
    """`ratio seconds` of a peer, or why there is none."""
    rows = json.dumps([(b.start, b.end, b.size) for b in problem.buffers])
    command = [sys.executable, "-c", _CHILD, kind, str(limit), str(PEER_BYTES)]
    try:
        done = subprocess.run(command, input=rows, capture_output=True, text=True, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"> {PEER_SECONDS} s"
    if done.returncode:
        return "failed"
    height, seconds = done.stdout.split()
    return f"{int(height) / max(lower_bound(problem), 1):.4f} {float(seconds):6.2f}"


class Rows:
    """The table as it grows."""

    def __init__(self, peers: bool, limit: float) -> None:
        self.peers, self.limit = peers, limit
        theirs = f"{'omni':>14} {'super6':>14}" if peers else ""
        print(f"{'instance':<22}{'buffers':>8}{'bound':>12}{'height':>12}{'ratio':>9} {'status':<11}{'s':>7} {theirs}")

    def add(self, name: str, plan: PackingPlan, seconds: float) -> None:
        validate_packing(plan.problem, plan.offsets)
        ours = f"{plan.lower_bound:>12}{plan.height:>12}{plan.ratio:>9.5f} {plan.status:<11}{seconds:7.2f}"
        theirs = ""
        if self.peers:
            theirs = " ".join(f"{peer(kind, plan.problem, self.limit):>14}" for kind in ("omni", "super6"))
        print(f"{name:<22}{len(plan.problem):>8}{ours} {theirs}", flush=True)


def timed(problem: PackingProblem, **options: Any) -> tuple[PackingPlan, float]:
    began = time.perf_counter()
    plan = pack(problem, **options)
    return plan, time.perf_counter() - began


def instances(data: Path, names: tuple[str, ...]) -> Iterator[tuple[str, PackingProblem]]:
    for name in names:
        path = data / (f"{name}.1048576.csv" if name in HARD else f"{name}.csv")
        if path.exists():
            yield name, read_csv(path)


def hard(rows: Rows, data: Path) -> None:
    total = 0.0
    for name, problem in instances(data, HARD):
        plan, seconds = timed(problem, capacity=CAPACITY[name], effort="prove", time_limit=60)
        total += seconds
        rows.add(f"{name} at {CAPACITY[name]}", plan, seconds)
    print(f"all {len(HARD)} at their capacities: {total:.2f} s")


def best(rows: Rows, data: Path) -> None:
    for name, problem in instances(data, HARD):
        rows.add(f"{name} best", *timed(problem, effort="best", time_limit=rows.limit))


def minute(rows: Rows, data: Path) -> None:
    for name, problem in instances(data, ("D",)):
        rows.add(f"{name} best 60 s", *timed(problem, effort="best", time_limit=60))


def traces(rows: Rows, data: Path) -> None:
    for name, problem in instances(data, TRACES):
        rows.add(f"{name} fast", *timed(problem, effort="fast"))
        rows.add(f"{name} best", *timed(problem, effort="best", time_limit=10))


def cuts(rows: Rows, data: Path) -> None:
    for num in (100, 1000, 10000):
        rows.add(f"guillotine {num}", *timed(guillotine(num, num), effort="best", time_limit=10))


def scale(rows: Rows, data: Path) -> None:
    points = []
    for num in (1000, 3000, 10_000, 30_000, 100_000):
        arrays = random_arrays(num)
        began = time.perf_counter()
        plan = pack_arrays(*arrays)
        seconds = time.perf_counter() - began
        points.append((num, seconds))
        rows.add(f"random {num} fast", plan, seconds)
    slope = np.polyfit(*np.log(np.array(points)).T, 1)[0]
    print(f"time grows as buffers^{slope:.2f} from 1,000 to 100,000")


SECTIONS = {"hard": hard, "best": best, "minute": minute, "traces": traces, "guillotine": cuts, "scale": scale}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "packing"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--time-limit", type=float, default=3.0)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections: " + ", ".join(SECTIONS))
    args = parser.parse_args()
    pack(guillotine(60, 4), effort="best", time_limit=5)
    rows = Rows(not args.no_peers, args.time_limit)
    for name in args.only.split(","):
        SECTIONS[name](rows, args.data)


if __name__ == "__main__":
    main()
