"""Training steps: what each strategy saves, and whether the results are PyTorch's.

    python benchmarks/training.py [NAME ...] [--memory | --peers] [--seconds 10] [--torch-peak] [--json]

`--memory` plans each step of `LARGE` under each strategy on one device. Peak: the most bytes live at once in the arena;
height: its size; bound: no packing is lower. The arena holds activations, gradients (of weights too) and outputs.
Parameters and optimizer state are updated where they lie, so that new values take no bytes; they, feeds and scratch
are apart. `--torch-peak` measures the same of PyTorch's allocator in eager mode: what a step adds to these.

`--peers` runs three steps of each model of `SMALL` here and in PyTorch, from the same weights and feeds, under every
strategy on one device, and on a host and a gpu without batch normalization under the policies that are right. Printed
are the largest differences: of the losses, of each trained parameter relative to its largest element, and of how far
all parameters moved (Euclidean). Deep networks with batch normalization are steep: a rate of 1e-3 changes their loss by
a tenth, and an activation near zero that rounding gives the other sign changes a gradient by all of it. So they take
smaller steps, and the third figure says that they go the same way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

import memopt
from memopt import models
from memopt.training import Momentum

STRATEGIES = ("none", "rename", "share")
#: Those whose memory is shown.
PLANNED = (*STRATEGIES, "best")
NUM_STEPS = 3

#: model -> (options, rate) of a step that is fast to run; every batch norm sees at least eight numbers a channel.
SMALL: dict[str, tuple[dict[str, Any], float]] = {
    "mlp": ({"batch": 4}, 1e-3),
    "lenet": ({"batch": 4}, 1e-3),
    "resnet18": ({"batch": 4, "image": 33}, 1e-5),
    "resnet50": ({"batch": 4, "image": 33}, 1e-6),
    "mobilenetv2": ({"batch": 4, "image": 33}, 1e-6),
    "unet": ({"batch": 2, "image": 32}, 1e-3),
    "densenet121": ({"batch": 2, "image": 64}, 1e-6),
    "gpt": ({"batch": 2, "sequence": 16, "layers": 2}, 1e-3),
    "lstm": ({"batch": 2, "sequence": 6}, 1e-3),
}

#: model -> options of a step of real size.
LARGE: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 4, "image": 224},
    "mobilenetv2": {"batch": 4, "image": 224},
    "unet": {"batch": 4, "image": 128},
    "gpt": {"batch": 4, "sequence": 64, "layers": 4},
    "lstm": {"batch": 4, "sequence": 32},
}

LACKS = frozenset({"BatchNormalization", "BatchNormalizationGrad"})


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What one strategy needs for one step, in bytes; `seconds` to compile and validate it."""

    model: str
    strategy: str
    peak_bytes: int
    height_bytes: int
    lower_bound_bytes: int
    scratch_bytes: int
    feed_bytes: int
    param_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Differences from PyTorch after `NUM_STEPS` steps: relative, see the module's docstring."""

    model: str
    strategy: str
    machine: str
    transfer: str
    loss_error: float
    param_error: float
    moved_error: float


def memory_rows(name: str, seconds: float, strategies: tuple[str, ...] = PLANNED) -> Iterator[MemoryRow]:
    """The rows of one model; `seconds` for the packer."""
    graph = models.build(name, train=True, **LARGE[name])
    for strategy in strategies:
        start = time.perf_counter()
        plan = memopt.compile(graph, strategy, pack_seconds=seconds)
        use = plan.devices["host"]
        sizes = (use.peak_bytes, use.height_bytes, use.lower_bound_bytes)
        apart = (use.scratch_bytes, use.feed_bytes, use.param_bytes)
        yield MemoryRow(name, strategy, *sizes, *apart, time.perf_counter() - start)


def torch_peak_bytes(name: str) -> int:
    """The live peak of PyTorch's allocator, in eager mode, on the same step."""
    from benchmarks.torch_step import TorchStep

    forward = models.build(name, train=True, optimizer=None, **LARGE[name])
    return TorchStep(forward, Momentum(), models.random_feeds(forward)).live_peak_bytes()


def machines() -> list[tuple[memopt.Machine, str]]:
    """Each machine with a policy that is right on it."""
    split = memopt.Machine.host_and("gpu", lacks=LACKS)
    return [(memopt.Machine.host_only(), "publish"), (split, "publish"), (split, "outer")]


@cache
def torch_results(name: str) -> tuple[tuple[float, ...], dict[str, np.ndarray]]:
    """(losses, parameters after the steps), by PyTorch."""
    from benchmarks.torch_step import TorchStep

    options, rate = SMALL[name]
    forward = models.build(name, train=True, optimizer=None, **options)
    peer = TorchStep(forward, Momentum(rate), models.random_feeds(forward))
    losses = tuple(peer.run() for _ in range(NUM_STEPS))
    return losses, peer.state()


def peer_rows(name: str, strategies: tuple[str, ...] = STRATEGIES) -> Iterator[PeerRow]:
    """The rows of one model. Needs PyTorch."""
    losses, theirs = torch_results(name)
    options, rate = SMALL[name]
    graph = models.build(name, train=True, optimizer=Momentum(rate), **options)
    feeds = models.random_feeds(graph)
    for strategy in strategies:
        for machine, transfer in machines():
            plan = memopt.compile(graph, strategy, machine, transfer, pack_seconds=0)
            runs = [float(result["loss"]) for result in plan.run_many([feeds] * NUM_STEPS)]
            loss_error = max(abs(a - b) / abs(b) for a, b in zip(runs, losses, strict=True))
            yield PeerRow(name, strategy, str(machine), transfer, loss_error, *_errors(graph, plan.state(), theirs))


def _errors(graph: memopt.Graph, ours: dict[str, Any], theirs: dict[str, np.ndarray]) -> tuple[float, float]:
    """(the largest error of a trained parameter, the error of the whole move)."""
    worst, off, moved = 0.0, 0.0, 0.0
    for value in graph.params:
        name, before = value.name, graph.param_data(value)
        if f"{name}.velocity" in ours and before is not None:
            have, want = (np.asarray(side[name], np.float64) for side in (ours, theirs))
            worst = max(worst, float(np.abs(have - want).max() / np.abs(want).max()))
            off += float(np.square(have - want).sum())
            moved += float(np.square(want - before).sum())
    return worst, float(np.sqrt(off / moved))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="NAME", nargs="*", help="built-in models (default: all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--memory", action="store_true", help="what each strategy needs, for steps of real size")
    what.add_argument("--peers", action="store_true", help="results against PyTorch, for small steps")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for the packer (default: 10)")
    parser.add_argument("--torch-peak", action="store_true", help="measure PyTorch's live peak too")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    args = parser.parse_args()
    rows: list[MemoryRow | PeerRow] = []
    if not args.peers:
        rows += _show_memory(args)
    if not args.memory:
        rows += _show_peers(args)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


def _show_memory(args: argparse.Namespace) -> list[MemoryRow]:
    rows: list[MemoryRow] = []
    if not args.json:
        print(f"{'model':12} {'strategy':8} {'peak':>9} {'height':>9} {'bound':>9} {'params':>9}  MiB   seconds")
    for name in [one for one in LARGE if not args.models or one in args.models]:
        for row in memory_rows(name, args.seconds):
            rows.append(row)
            sizes = (row.peak_bytes, row.height_bytes, row.lower_bound_bytes, row.param_bytes)
            if not args.json:
                text = " ".join(f"{size / 2**20:9.2f}" for size in sizes)
                print(f"{name:12} {row.strategy:8} {text}        {row.seconds:6.1f}", flush=True)
        if args.torch_peak and not args.json:
            print(f"{name:12} {'PyTorch':8} {torch_peak_bytes(name) / 2**20:9.2f}", flush=True)
    return rows


def _show_peers(args: argparse.Namespace) -> list[PeerRow]:
    rows: list[PeerRow] = []
    for name in [one for one in SMALL if not args.models or one in args.models]:
        for row in peer_rows(name):
            rows.append(row)
            if not args.json:
                errors = f"{row.loss_error:8.1e} {row.param_error:8.1e} {row.moved_error:8.1e}"
                print(f"{name:12} {row.strategy:8} {row.transfer:8} {errors}  {row.machine}", flush=True)
    return rows


if __name__ == "__main__":
    main()
