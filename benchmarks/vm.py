"""VM overhead: nanoseconds an instruction on a chain of tiny ops, against onnxruntime on the same graph, in one
process.

    python benchmarks/vm.py [--ops 10000] [--width 4]

A chain of Add and Mul on a few floats does next to no work, so time per node is overhead. `empty kernel` is the VM's
loop alone: rows that point to an entry that returns at once.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numba import cfunc

import memopt
from memopt.runtime.vm import run_rows


def chain(num_ops: int, width: int) -> memopt.Graph:
    builder = memopt.GraphBuilder("chain")
    x = builder.input("x", (width,))
    w = builder.param("w", np.linspace(0.9, 1.1, width, dtype=np.float32))
    for i in range(num_ops):
        x = builder.add(x, w) if i % 2 else builder.mul(x, w)
    builder.output(x)
    return builder.build()


def best(run, repeats: int = 20) -> float:  # type: ignore[no-untyped-def]
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@cfunc("int32(intp)")
def _nothing(frame):  # type: ignore[no-untyped-def]
    return 0


def empty_rows(num_rows: int) -> float:
    table = np.zeros((num_rows, 2), np.int64)
    table[:, 0] = _nothing.address
    status = np.zeros(1, np.int64)
    return best(lambda: run_rows(table, 0, num_rows, status))


def onnx_seconds(num_ops: int, width: int, feeds: dict[str, np.ndarray]) -> float:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, name = [], "x"
    for i in range(num_ops):
        nodes.append(helper.make_node("Add" if i % 2 else "Mul", [name, "w"], [f"y{i}"]))
        name = f"y{i}"
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", kind, [width])],
        [helper.make_tensor_value_info(name, kind, [width])],
        [numpy_helper.from_array(np.linspace(0.9, 1.1, width, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    return best(lambda: session.run(None, feeds), 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=4)
    args = parser.parse_args()
    feeds = {"x": np.linspace(-1, 1, args.width, dtype=np.float32)}
    print(f"{args.ops} ops on {args.width} floats; best of several runs")
    print(f"{'what':<24}{'ns an instruction':>20}")
    print(f"{'empty kernel':<24}{empty_rows(args.ops) / args.ops * 1e9:>20.1f}")
    for strategy in ("none", "share"):
        plan = memopt.compile(chain(args.ops, args.width), strategy)
        plan.run(feeds)
        seconds = best(lambda plan=plan: plan.executor()._run_all())  # type: ignore[misc]
        print(f"{'memopt ' + strategy:<24}{seconds / args.ops * 1e9:>20.1f}")
    try:
        print(f"{'onnxruntime':<24}{onnx_seconds(args.ops, args.width, feeds) / args.ops * 1e9:>20.1f}")
    except ImportError:
        print("onnxruntime is not installed (extra `peers`)")


if __name__ == "__main__":
    main()
