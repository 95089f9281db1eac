"""Run one op three ways: its reference, its kernel (compiled, or as plain Python) and onnxruntime.

The kernel gets its operands at the ends of guarded buffers, in scratch that holds NaN, and outputs that hold NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from memopt.ops import KernelCall, KernelQuery, get_op
from memopt.runtime.entry import run_kernel
from memopt.types import TensorType

_GUARD = 64
_POISON = 0xFF  # as a float of any width: NaN


def floats(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def types_of(arrays: Sequence[np.ndarray | None]) -> tuple[TensorType | None, ...]:
    return tuple(None if a is None else TensorType.of(a.shape, a.dtype) for a in arrays)


def make_query(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    layout: str = "NCHW",
    scratch: int = 1 << 20,
) -> KernelQuery:
    """The query for these inputs; raises `TypeInferenceError` where they do not fit."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs or {})
    types = types_of(arrays)
    return KernelQuery(types, tuple(spec.infer(types, full, outputs)), full, layout, scratch)


def reference(
    op: str, arrays: Sequence[np.ndarray | None], attrs: Mapping[str, Any] | None = None, *, outputs: int = 1
) -> list[np.ndarray]:
    """The reference's outputs, after a check that they are of the inferred types, fresh, and left the inputs alone."""
    query = make_query(op, arrays, attrs, outputs=outputs)
    before = [None if a is None else a.copy() for a in arrays]
    found = list(get_op(op).reference(arrays, query.attrs, query.outputs))
    assert [TensorType.of(a.shape, a.dtype) for a in found] == list(query.outputs)
    for array, old in zip(arrays, before, strict=True):
        if array is not None:
            np.testing.assert_array_equal(array, old)
            assert not any(np.shares_memory(array, out) for out in found)
    return found


def guarded(nbytes: int) -> np.ndarray:
    """Poisoned bytes with a guard behind them."""
    return np.full(nbytes + _GUARD, _POISON, np.uint8)


def physical(array: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if layout == "NHWC" and array.ndim == 4 else array


def run_by_kernel(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    layout: str = "NCHW",
    scratch: int = 1 << 20,
    inplace: Mapping[int, int] | None = None,
    plain: bool = False,
) -> list[np.ndarray]:
    """The kernel's outputs, logical NCHW. `inplace`: output -> the input it is computed over. `plain`: uncompiled."""
    spec = get_op(op)
    query = make_query(op, arrays, attrs, outputs=outputs, layout=layout, scratch=scratch)
    call = spec.kernel(query)
    assert call is not None, f"{op} has no kernel for {query}"
    stored: dict[str, list[np.ndarray]] = {"in": [], "out": [], "scratch": [guarded(spec.workspace(query))]}
    for index, array in enumerate(arrays):
        data = np.zeros(0) if array is None else array
        data = physical(data, layout) if index in spec.layout_inputs else data
        buffer = guarded(data.nbytes)
        buffer[: data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
        stored["in"].append(buffer)
    for index, type in enumerate(query.outputs):
        shared = (inplace or {}).get(index)
        stored["out"].append(guarded(type.nbytes) if shared is None else stored["in"][shared])
    _run(call, [stored[arg.role][arg.index] for arg in call.arrays], plain)
    for buffer in (*stored["in"], *stored["out"], *stored["scratch"]):
        assert (buffer[-_GUARD:] == _POISON).all(), f"{call.kernel} wrote past an operand"
    for index, array in enumerate(arrays):
        if array is not None and index not in (inplace or {}).values():
            data = physical(array, layout) if index in spec.layout_inputs else array
            assert stored["in"][index][:-_GUARD].tobytes() == data.tobytes(), f"{call.kernel} wrote input {index}"
    return [_logical(buffer, type, layout) for buffer, type in zip(stored["out"], query.outputs, strict=True)]


def _run(call: KernelCall, buffers: list[np.ndarray], plain: bool) -> None:
    if not plain:
        assert run_kernel(call, buffers) == 0
        return
    family, name = call.kernel.split(".")
    function = getattr(importlib.import_module(f"memopt.kernels.{family}"), name)
    views = []
    for buffer, arg in zip(buffers, call.arrays, strict=True):
        count = int(np.prod(arg.shape)) * np.dtype(arg.dtype).itemsize
        views.append(buffer[:count].view(arg.dtype).reshape(arg.shape))
    scalars = [np.int64(s) if isinstance(s, int) else s for s in call.scalars]
    with np.errstate(all="ignore"):
        assert function(*views, *scalars) == 0


def _logical(buffer: np.ndarray, type: TensorType, layout: str) -> np.ndarray:
    data = buffer[: type.nbytes].view(type.dtype)
    if layout == "NHWC" and type.rank == 4:
        n, c, h, w = type.shape
        return data.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return data.reshape(type.shape)


def run_by_onnxruntime(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    opset: int = 22,
) -> list[np.ndarray]:
    """onnxruntime's outputs, of a model of this one node (raises what it raises)."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **(attrs or {}))
    feeds = {name: a for name, a in zip(names, arrays, strict=True) if a is not None}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "case", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    """Equal types, and equal up to `tolerance` of each value and of the largest one."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=1.0)) if b.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
