"""What copying feeds in and outputs out costs: one sum of two large feeds, by each way of giving and taking arrays.

    python benchmarks/copies.py [--mib 64] [--repeat 9]

Columns: what is copied, and milliseconds of a whole `plan.run`, the fastest of several. Every result is compared with
NumPy's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import memopt
from memopt.runtime import RunResult

Run = Callable[[], tuple[float, RunResult]]


def ways(x: np.ndarray, y: np.ndarray) -> dict[str, Run]:
    """What is copied -> a run that makes x + y, with its seconds."""
    b = memopt.GraphBuilder("sum")
    b.output(b.add(b.input("x", x.shape), b.input("y", y.shape), name="s"))
    graph, out, state = b.build(), np.empty_like(x), np.empty_like(x)
    arena, caller = memopt.compile(graph), memopt.compile(graph, outputs="caller")
    donated = memopt.compile(graph, donate=["x"])

    def timed(plan: memopt.Plan, first: np.ndarray, **options: object) -> tuple[float, RunResult]:
        begin = time.perf_counter()
        result = plan.run({"x": first, "y": y}, **options)
        return time.perf_counter() - begin, result

    def update() -> tuple[float, RunResult]:
        state[...] = x
        return timed(donated, state, out={"s": state})

    return {
        "feeds and output": lambda: timed(arena, x, copy_feeds=True),
        "feeds and output, with out=": lambda: timed(arena, x, out={"s": out}, copy_feeds=True),
        "output": lambda: timed(arena, x),
        "output, with out=": lambda: timed(arena, x, out={"s": out}),
        "nothing: a fresh output": lambda: timed(caller, x),
        "nothing: out=": lambda: timed(caller, x, out={"s": out}),
        "nothing: out= is the donated feed": update,
    }


def milliseconds(run: Run, want: np.ndarray, repeat: int) -> float:
    """The fastest run; raises where the sum is wrong."""
    times = []
    for _ in range(repeat):
        seconds, result = run()
        times.append(seconds)
        if not np.array_equal(result["s"], want):
            raise SystemExit("the sum is wrong")
    return min(times) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=64, help="size of each feed (default: 64)")
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    x, y = np.random.default_rng(0).standard_normal((2, args.mib << 18)).astype(np.float32)
    print(f"{'copied':36}{'ms':>9}")
    for name, run in ways(x, y).items():
        print(f"{name:36}{milliseconds(run, x + y, args.repeat):9.1f}", flush=True)


if __name__ == "__main__":
    main()
