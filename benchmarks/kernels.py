"""Kernels against onnxruntime, op by op, on shapes of ResNet-50, VGG and MobileNet.

    python benchmarks/kernels.py [--threads 1] [--only Conv] [--repeats 9] [--json]

Prints a table: op, shapes, our milliseconds, onnxruntime's, and the ratio (below 1: ours is faster). Each time is the
best of `--repeats` calls; weights are constants to both, and data are in the plain NCHW layout before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One op on data of one shape; `weights` are the shapes of the other inputs."""

    op: str
    data: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) for shape in (self.data, *self.weights[:1]))
        notes = " ".join(f"{k[:3]}{v[0] if isinstance(v, tuple) else v}" for k, v in self.attrs if k != "kernel_shape")
        return f"{shapes} {notes}"


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of one case, and the largest difference relative to the largest result."""

    op: str
    shape: str
    ours_ms: float
    onnxruntime_ms: float
    ratio: float
    error: float


def conv(channels: int, size: int, maps: int, kernel: int, stride: int = 1, group: int = 1) -> Case:
    weights = ((maps, channels // group, kernel, kernel), (maps,))
    attrs: dict[str, Any] = {"strides": (stride, stride), "pads": (kernel // 2,) * 4}
    if group > 1:
        attrs["group"] = group
    return Case("Conv", (1, channels, size, size), weights, tuple(attrs.items()))


def pool(op: str, channels: int, size: int, kernel: int, stride: int, pad: int = 0) -> Case:
    attrs = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4}
    return Case(op, (1, channels, size, size), (), tuple(attrs.items()))


CASES = (
    conv(3, 224, 64, 7, 2),
    conv(64, 56, 64, 1),
    conv(64, 56, 64, 3),
    conv(64, 56, 256, 1),
    conv(256, 56, 512, 1, 2),
    conv(128, 28, 128, 3),
    conv(256, 14, 256, 3),
    conv(512, 7, 512, 3),
    conv(1024, 14, 256, 1),
    conv(512, 7, 2048, 1),
    conv(64, 224, 64, 3),
    conv(256, 56, 256, 3),
    conv(512, 28, 512, 3),
    conv(32, 112, 32, 3, 1, 32),
    conv(96, 112, 96, 3, 2, 96),
    conv(576, 14, 576, 3, 1, 576),
    conv(256, 56, 256, 3, 1, 32),
    pool("MaxPool", 64, 112, 3, 2, 1),
    pool("MaxPool", 64, 224, 2, 2),
    pool("AveragePool", 128, 56, 2, 2),
    pool("AveragePool", 192, 35, 3, 1, 1),
    Case("GlobalAveragePool", (1, 2048, 7, 7)),
    Case("BatchNormalization", (1, 64, 112, 112), ((64,),) * 4),
    Case("BatchNormalization", (1, 2048, 7, 7), ((2048,),) * 4),
    Case("LRN", (1, 64, 56, 56), (), (("size", 5),)),
    Case("LayerNormalization", (1, 128, 768), ((768,), (768,))),
    Case("InstanceNormalization", (1, 64, 56, 56), ((64,), (64,))),
    Case("Gemm", (1, 2048), ((1000, 2048), (1000,)), (("transB", 1),)),
    Case("Gemm", (1, 25088), ((4096, 25088), (4096,)), (("transB", 1),)),
    Case("Gemm", (1, 4096), ((4096, 4096), (4096,))),
    Case("MatMul", (1, 128, 768), ((768, 3072),)),
    Case("MatMul", (12, 128, 64), ((12, 64, 128),)),
)


def best_ms(call: Callable[[], Any], repeats: int) -> float:
    """The shortest of `repeats` calls, in milliseconds."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def make_inputs(case: Case) -> list[Any]:
    import numpy as np

    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(case.data, np.float32)]
    for i, shape in enumerate(case.weights):
        values = rng.standard_normal(shape, np.float32) * 0.1
        arrays.append(np.abs(values) + 0.5 if case.op == "BatchNormalization" and i == 3 else values)
    return arrays


def ours(case: Case, arrays: list[Any]) -> tuple[Callable[[], Any], Any]:
    """A call of our kernel, and the output it fills."""
    import numpy as np

    from memopt.ops import KernelQuery, get_op
    from memopt.runtime.entry import entry_address, frame_words
    from memopt.runtime.vm import run_rows
    from memopt.types import TensorType

    spec = get_op(case.op)
    attrs = spec.complete_attrs(dict(case.attrs))
    types = tuple(TensorType.of(array.shape, array.dtype) for array in arrays)
    outputs = tuple(spec.infer(types, attrs, 1))
    query = KernelQuery(types, outputs, attrs)
    kernel = spec.kernel(query)
    if kernel is None:
        raise SystemExit(f"{case.op} {case.title} has no kernel")
    out = np.zeros(outputs[0].shape, outputs[0].dtype)
    scratch = np.zeros(max(spec.workspace(query), 8), np.uint8)
    operands = {"in": arrays, "out": [out], "scratch": [scratch]}
    addresses = [operands[arg.role][arg.index].ctypes.data for arg in kernel.arrays]
    frame = np.array(frame_words(kernel, addresses), np.int64)
    table = np.array([[entry_address(kernel), frame.ctypes.data]], np.int64)
    status = np.zeros(1, np.int64)
    keep = (frame, operands)  # the table holds only addresses

    def run() -> Any:
        run_rows(table, 0, 1, status)
        return keep

    return run, out


def theirs(case: Case, arrays: list[Any], threads: int) -> Callable[[], Any]:
    """A call of onnxruntime on a model of this one node."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(case.op, names, ["y"], **dict(case.attrs))
    data = helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, case.data)
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for a, n in zip(arrays[1:], names[1:], strict=True)]
    if case.op == "MatMul" and len(case.data) == 3 and case.data[0] > 1:
        constants = []
    feeds = [data] if constants or len(arrays) == 1 else [
        data, helper.make_tensor_value_info("x1", onnx.TensorProto.FLOAT, arrays[1].shape)
    ]  # fmt: skip
    graph = helper.make_graph([node], "case", feeds, [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {feed.name: array for feed, array in zip(feeds, arrays, strict=False)}
    return lambda: session.run(None, values)[0]


def measure(case: Case, threads: int, repeats: int) -> Row:
    import numpy as np

    arrays = make_inputs(case)
    run, out = ours(case, arrays)
    other = theirs(case, arrays, threads)
    mine, peer = best_ms(run, repeats), best_ms(other, repeats)
    expected = other()
    error = float(np.max(np.abs(out - expected)) / np.max(np.abs(expected)))
    return Row(case.op, case.title, mine, peer, mine / peer, error)


def measure_all(only: str, threads: int, repeats: int) -> Iterator[Row]:
    for case in CASES:
        if only in (case.op, ""):
            yield measure(case, threads, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)  # read when SciPy is loaded, below
    rows = []
    if not options.json:
        print(f"{'op':22s} {'shape':48s} {'ours ms':>9s} {'ort ms':>9s} {'ratio':>6s} {'error':>8s}")
    for row in measure_all(options.only, options.threads, options.repeats):
        rows.append(asdict(row))
        if not options.json:
            times = f"{row.ours_ms:9.3f} {row.onnxruntime_ms:9.3f} {row.ratio:6.2f} {row.error:8.1e}"
            print(f"{row.op:22s} {row.shape:48s} {times}", flush=True)
    if options.json:
        print(json.dumps({"threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
