"""Resize's reference against onnxruntime, through the frontend; its types and its view."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import memopt
from memopt.errors import TypeInferenceError, UnsupportedOpError
from memopt.ops import get_op
from tests.nn_harness import assert_close, floats, make_query, reference, types_of

ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
#: Those that onnxruntime takes for every mode and rank.
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


def resize_model(
    x: np.ndarray, attrs: dict[str, Any], constants: dict[str, np.ndarray], op: str = "Resize", opset: int = 19
) -> onnx.ModelProto:
    """A model of one Resize or Upsample; `constants` by the name of the input, in ONNX's order."""
    order = ("roi", "scales", "sizes") if op == "Resize" and opset > 10 else ("scales",)
    names = ["x", *(name if name in constants else "" for name in order)]
    while not names[-1]:
        names.pop()
    node = helper.make_node(op, names, ["y"], **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "case",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def theirs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def ours(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return memopt.run_reference(memopt.load(model), {"x": x})[0]["y"]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nearest_equals_onnxruntime(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    attrs = {
        "mode": "nearest",
        "nearest_mode": data.draw(st.sampled_from(ROUNDINGS)),
        "coordinate_transformation_mode": data.draw(st.sampled_from(COORDINATES)),
    }
    if data.draw(st.booleans()):
        sizes = data.draw(st.lists(st.integers(1, 17), min_size=len(shape), max_size=len(shape)))
        constants = {"sizes": np.array(sizes, np.int64)}
    else:
        scale = st.sampled_from([0.25, 0.5, 0.6, 1.0, 1.5, 2.0, 3.0, 2.7])
        scales = data.draw(st.lists(scale, min_size=len(shape), max_size=len(shape)))
        assume(all(int(np.float32(dim) * np.float32(scale)) > 0 for dim, scale in zip(shape, scales, strict=True)))
        constants = {"scales": np.array(scales, np.float32)}
    x = floats(*shape)
    model = resize_model(x, attrs, constants)
    np.testing.assert_array_equal(ours(model, x), theirs(model, x))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_linear_and_cubic_equal_onnxruntime(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["linear", "cubic"]))
    shape = [data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)), *(data.draw(st.integers(1, 9)) for _ in "hw")]
    attrs = {"mode": mode, "coordinate_transformation_mode": data.draw(st.sampled_from(COORDINATES))}
    if mode == "cubic":
        attrs["cubic_coeff_a"] = data.draw(st.sampled_from([-0.5, -0.75]))
        attrs["exclude_outside"] = data.draw(st.integers(0, 1))
    sizes = [*shape[:2], data.draw(st.integers(1, 17)), data.draw(st.integers(1, 17))]
    x = floats(*shape)
    model = resize_model(x, attrs, {"sizes": np.array(sizes, np.int64)})
    assert_close([ours(model, x)], [theirs(model, x)], 1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(5, 4), (3, 13), (20, 2)])
def test_antialias_equals_onnxruntime(mode: str, sizes: tuple[int, int]) -> None:
    x = floats(1, 2, 11, 9)
    attrs = {"mode": mode, "antialias": 1, "exclude_outside": 1}
    model = resize_model(x, attrs, {"sizes": np.array([1, 2, *sizes], np.int64)})
    assert_close([ours(model, x)], [theirs(model, x)], 1e-4)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_axes_and_policy(policy: str) -> None:
    x = floats(1, 2, 6, 9)
    attrs = {"axes": [2, 3], "keep_aspect_ratio_policy": policy}
    model = resize_model(x, attrs, {"sizes": np.array([9, 10], np.int64)})
    np.testing.assert_array_equal(ours(model, x), theirs(model, x))


def test_crop() -> None:
    x = floats(1, 1, 5, 6)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], np.float32)
    model = resize_model(x, attrs, {"roi": roi, "sizes": np.array([1, 1, 4, 7], np.int64)})
    found = ours(model, x)
    assert_close([found], [theirs(model, x)], 1e-5)
    assert (found == 7.0).any()


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize(
    ("mode", "scales"), [("nearest", (1, 1, 2, 3)), ("linear", (1, 1, 2, 2.5)), ("nearest", (1, 1, 0.5, 0.4))]
)
def test_old_forms(op: str, opset: int, mode: str, scales: tuple[float, ...]) -> None:
    if op == "Upsample" and min(scales) < 1:
        pytest.skip("Upsample only grows")
    x = floats(1, 2, 5, 6)
    model = resize_model(x, {"mode": mode}, {"scales": np.array(scales, np.float32)}, op, opset)
    assert_close([ours(model, x)], [theirs(model, x)], 1e-5)


def test_what_is_refused_says_why() -> None:
    x = floats(1, 2, 5, 6)
    model = resize_model(x, {}, {"scales": np.array([1, 1, 0.5, 2], np.float32)}, opset=10)
    with pytest.raises(UnsupportedOpError, match="both shrink and grow"):
        memopt.load(model)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64", "float16", "bool"])
def test_nearest_moves_any_dtype(dtype: str) -> None:
    x = (floats(1, 2, 3, 4) * 50).astype(dtype)
    (found,) = reference("Resize", [x], {"scales": (1.0, 1.0, 2.0, 2.0)})
    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({}, ["neither sizes nor scales"]),
        ({"scales": (1.0, 2.0)}, ["scales = (1.0, 2.0)", "4 numbers"]),
        ({"scales": (1.0, 1.0, 0.0, 1.0)}, ["above 0"]),
        ({"scales": (1.0, 1.0, float("nan"), 1.0)}, ["above 0"]),
        ({"scales": (1.0, 1.0, 3e38, 1.0)}, ["too large"]),
        ({"scales": (1.0, 1.0, 1e-9, 1.0), "sizes": (1, 2, 1, 4)}, ["do not make sizes"]),
        ({"sizes": (1, 2, -1, 4)}, ["sizes = (1, 2, -1, 4)"]),
        ({"sizes": (1, 2, 3, 4), "mode": "area"}, ["mode = 'area'"]),
        ({"sizes": (1, 2, 3, 4), "coordinate_transformation_mode": "corner"}, ["'corner'"]),
        ({"sizes": (1, 2, 3, 4), "coordinate_transformation_mode": "tf_crop_and_resize"}, ["roi = None"]),
    ],
)
def test_errors_name_the_attribute(attrs: Any, words: list[str]) -> None:
    with pytest.raises(TypeInferenceError) as error:
        make_query("Resize", [np.zeros((1, 2, 3, 4), np.float32)], attrs)
    for word in words:
        assert word in str(error.value)


def test_what_moves_nothing_is_a_view() -> None:
    spec, x = get_op("Resize"), floats(1, 2, 3, 4)
    view = spec.view_of(0)
    assert view is not None
    for sizes, offset in (((1, 2, 3, 4), 0), ((1, 2, 3, 5), None)):
        attrs = spec.complete_attrs({"sizes": sizes, "mode": "linear"})
        assert view.byte_offset(types_of([x]), spec.infer(types_of([x]), attrs, 1), attrs, 0) == offset


#: Here onnx computes with a fractional length of the result, onnxruntime and memopt with its size.
OTHER = {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}


@pytest.mark.slow
def test_agrees_with_the_onnx_package() -> None:
    """Its own cases, whose roi, scales and sizes are made initialisers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if "resize" in case.name or "upsample" in case.name]
    agreed = 0
    for case in cases:
        (x, *constants), (want,) = case.data_sets[0]
        if case.name in OTHER:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        names = [value.name for value in model.graph.input]
        del model.graph.input[1:]
        pairs = zip(constants, names[1:], strict=True)
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for array, name in pairs)
        graph = memopt.load(model)
        for found in (memopt.run_reference(graph, {names[0]: x})[0], memopt.compile(graph).run({names[0]: x})):
            assert_close([found[graph.outputs[0].name]], [want], 1e-4)
        agreed += 1
    assert agreed > 35
