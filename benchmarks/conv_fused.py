"""FusedConv against the separate kernels of Conv, BatchNormalization, Add and Relu, on layers of residual networks.

    python benchmarks/conv_fused.py [--threads 1] [--repeats 40] [--scratch 1048576]

Prints a table: shapes, milliseconds of the four kernels one after the other (the last three in place), of the fused
one, the ratio (below 1: the fused one is faster), scratch in bytes, and the largest difference relative to the largest
result. Each time is the best of `--repeats`, taken in turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

#: (channels, size, maps, kernel, group)
LAYERS = (
    (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1),
    (64, 56, 64, 1, 1),
    (256, 56, 256, 1, 1),
    (128, 28, 512, 1, 1),
    (256, 14, 1024, 1, 1),
    (512, 7, 2048, 1, 1),
    (64, 56, 64, 3, 1),
    (128, 56, 128, 3, 1),
    (256, 56, 256, 3, 1),
    (128, 28, 128, 3, 1),
    (512, 7, 512, 3, 1),
    (144, 56, 24, 1, 1),
    (96, 56, 96, 3, 96),
    (576, 14, 576, 3, 576),
)


def kernel_row(op: str, arrays: Sequence[Any], attrs: dict[str, Any], out: Any, scratch_bytes: int) -> tuple[Any, ...]:
    """(address of the entry point, its frame, what must be kept, bytes of scratch) of one call."""
    import numpy as np

    from memopt.ops import KernelQuery, get_op
    from memopt.runtime.entry import entry_address, frame_words
    from memopt.types import TensorType

    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    types = tuple(None if a is None else TensorType.of(a.shape, a.dtype) for a in arrays)
    query = KernelQuery(types, tuple(spec.infer(types, full, 1)), full, scratch_bytes=scratch_bytes)
    kernel, size = spec.kernel(query), spec.workspace(query)
    operands = {"in": arrays, "out": [out], "scratch": [np.zeros(max(size, 8), np.uint8)]}
    addresses = [operands[arg.role][arg.index].ctypes.data for arg in kernel.arrays]
    return entry_address(kernel), np.array(frame_words(kernel, addresses), np.int64), operands, size


def runner(rows: Sequence[tuple[Any, ...]]) -> Callable[[], None]:
    import numpy as np

    from memopt.runtime.vm import run_rows

    table = np.array([[row[0], row[1].ctypes.data] for row in rows], np.int64)
    status = np.zeros(1, np.int64)

    def run(keep: Any = rows) -> None:  # the table holds only addresses
        run_rows(table, 0, len(table), status)

    return run


def measure(layer: tuple[int, ...], repeats: int, scratch_bytes: int) -> str:
    import numpy as np

    channels, size, maps, kernel, group = layer
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, channels, size, size), np.float32)
    w = rng.standard_normal((maps, channels // group, kernel, kernel), np.float32) * 0.1
    norm = [*rng.standard_normal((3, maps), np.float32), rng.uniform(0.5, 1.5, maps).astype(np.float32)]
    z, c, y = (rng.standard_normal((1, maps, size, size), np.float32) for _ in range(3))
    attrs = {"pads": (kernel // 2,) * 4, "group": group}
    steps = [("Conv", [x, w], attrs), ("BatchNormalization", [c, *norm], {}), ("Add", [c, z], {}), ("Relu", [c], {})]
    separate = runner([kernel_row(op, arrays, some, c, scratch_bytes) for op, arrays, some in steps])
    row = kernel_row("FusedConv", [x, w, None, *norm, z], attrs | {"activation": "Relu"}, y, scratch_bytes)
    fused = runner([row])
    times: tuple[list[float], list[float]] = ([], [])
    clock = time.thread_time if os.environ["OPENBLAS_NUM_THREADS"] == "1" else time.perf_counter
    for _ in range(repeats + 1):
        for run, found in zip((separate, fused), times, strict=True):
            start = clock()
            run()
            found.append(clock() - start)
    apart, together = (min(found[1:]) * 1e3 for found in times)
    error = float(np.abs(y - c).max() / np.abs(c).max())
    title = f"{channels}x{size}x{size} -> {maps}, {kernel}x{kernel}" + (f", group {group}" if group > 1 else "")
    return f"{title:36s} {apart:9.3f} {together:9.3f} {together / apart:6.2f} {row[3]:9d} {error:8.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--scratch", type=int, default=1 << 20)
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)  # read when SciPy is loaded, below
    print(f"{'layer':36s} {'apart ms':>9s} {'fused ms':>9s} {'ratio':>6s} {'scratch':>9s} {'error':>8s}")
    for layer in LAYERS:
        print(measure(layer, options.repeats, options.scratch), flush=True)


if __name__ == "__main__":
    main()
