"""How expressions become kernel calls: shapes collapse, layouts, refusals; forms compose."""

from __future__ import annotations

import pytest

from memopt.errors import OptionError
from memopt.kernels.elementwise import SCALAR_FUNCTIONS, generate
from memopt.ops import KernelCall, KernelQuery, get_op
from memopt.ops.elementwise import OPS, ScalarForm, compose, loop_call, scalar_form
from memopt.types import TensorType as T

ADD = ScalarForm("add(x0, x1)")


def loop(*shapes, layout="NCHW"):
    *inputs, output = (T(shape) for shape in shapes)
    call = loop_call(ScalarForm("add(x0, x1)"), inputs, output, layout)
    return call.kernel.removeprefix("elementwise."), call.scalars


@pytest.mark.parametrize(
    ("shapes", "kernel", "scalars"),
    [
        (((2, 3), (2, 3), (2, 3)), "flat", ()),
        (((1, 8), (8,), (1, 8)), "flat", ()),
        (((), (), ()), "flat", ()),
        (((0, 3), (1, 3), (0, 3)), "flat", ()),
        (((2, 3, 4), (), (2, 3, 4)), "broadcast4_10", (1, 1, 1, 24, 0, 0, 0, 1, 0, 0, 0, 0)),
        (((2, 3, 4, 5), (3, 1, 1), (2, 3, 4, 5)), "broadcast4_10", (1, 2, 3, 20, 0, 60, 20, 1, 0, 0, 1, 0)),
        (((2, 3, 4), (3, 4), (2, 3, 4)), "broadcast4_11", (1, 1, 2, 12, 0, 0, 12, 1, 0, 0, 0, 1)),
        (((3, 1), (1, 4), (3, 4)), "broadcast4_01", (1, 1, 3, 4, 0, 0, 1, 0, 0, 0, 0, 1)),
    ],
)
def test_loops(shapes, kernel, scalars):
    assert loop(*shapes) == (kernel, scalars)


def test_loops_in_nhwc():
    assert loop((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), layout="NHWC") == ("flat", ())
    kernel, scalars = loop((2, 3, 4, 5), (1, 3, 1, 1), (2, 3, 4, 5), layout="NHWC")
    assert (kernel, scalars) == ("broadcast4_11", (1, 1, 40, 3, 0, 0, 3, 1, 0, 0, 0, 1))
    assert loop((2, 3, 4, 5), (4, 5), (2, 3, 4, 5), layout="NHWC")[0] == "broadcast4_10"
    assert loop((2, 3, 4, 5), (3, 4, 5), (2, 3, 4, 5), layout="NHWC")[0] == "broadcast4_1s"


def test_no_kernel():
    assert loop_call(ADD, [T((2,), "float16")] * 2, T((2,), "float16")) is None
    many = [T((2,))] * 17
    assert get_op("Sum").kernel(KernelQuery(tuple(many), (T((2,)),), {})) is None
    tangled = T((2, 1) * 5), T((1, 2) * 5), T((2,) * 10)
    assert loop_call(ADD, tangled[:2], tangled[2]) is None
    assert get_op("Clip").kernel(KernelQuery((T((2,), "uint64"),), (T((2,), "uint64"),), {"min": 1.0})) is None
    assert scalar_form("MatMul", [T((2,))], T((2,)), {}) is None


def test_deep_broadcast():
    assert loop((2, 1, 2, 1, 2), (1, 2, 1, 2, 1), (2, 2, 2, 2, 2))[0] == "broadcast5_10"


def test_every_form_calls_scalar_functions():
    for spec in OPS:
        dtype = "float32" if spec.name not in ("Not", "And", "Or") else "bool"
        inputs = [T((3,), dtype) for _ in spec.inputs]
        if spec.name == "Where":
            inputs[0] = T((3,), "bool")
        if spec.name == "Masked":
            inputs[1] = T((3,), "bool")
        attrs = spec.complete_attrs({"Cast": {"to": "int8"}, "ExtremumGrad": {"index": 0}}.get(spec.name, {}))
        call = spec.kernel(KernelQuery(tuple(inputs), tuple(spec.infer(inputs, attrs, 1)), attrs))
        assert "def kernel(y" in generate("flat", call)
    assert "like" in SCALAR_FUNCTIONS


def test_compose():
    clip = ScalarForm("at_most(at_least(x0, s0), s1)", (0.0, 6.0))
    leaky = ScalarForm("leaky_relu(x1, s0)", (0.1,))
    whole = compose(ADD, [compose(clip, [ScalarForm("x0")]), leaky])
    assert whole == ScalarForm("add(at_most(at_least(x0, s0), s1), leaky_relu(x1, s2))", (0.0, 6.0, 0.1))


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("x0 +", "not an expression"),
        ("x1", "holds 'x1'"),
        ("add(x0, s0)", "holds 's0'"),
        ("add(x0, 'text')", "text"),
        ("__import__(x0)", "__import__"),
        ("generate(x0)", "generate"),
        ("x0.dtype", "x0.dtype"),
        ("relu(x=x0)", "relu"),
        ("[x0][0]", "x0"),
    ],
)
def test_hostile_expressions_are_refused(expression, match):
    call = loop_call(ScalarForm("x0"), [T((2,))], T((2,)))
    with pytest.raises(OptionError, match=match):
        generate("flat", KernelCall(call.kernel, call.arrays, (), expression))


def test_unknown_loops_are_refused():
    call = loop_call(ADD, [T((2,)), T((2,))], T((2,)))
    for name in ("loop", "broadcast4_1", "broadcast4_1x"):
        with pytest.raises(OptionError, match="no elementwise loop"):
            generate(name, call)
