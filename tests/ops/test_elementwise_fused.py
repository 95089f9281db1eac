"""`Elementwise`: what its steps may say, and that it does what its ops do one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from memopt import compile, parse
from memopt.errors import OptionError, ParseError, TypeInferenceError
from memopt.kernels.elementwise import SCALAR_FUNCTIONS, generate
from memopt.ops import FUSED, MAX_STEPS, Chain, KernelCall, KernelQuery, chain_of, get_op, join_chains
from memopt.ops.elementwise import OPS
from memopt.ops.elementwise_fused import Step
from memopt.runtime.entry import run_kernel
from memopt.types import TensorType as T

SPEC = get_op(FUSED)


def attrs(steps, *dtypes):
    return SPEC.complete_attrs({"steps": tuple(steps), "dtypes": dtypes})


def infer(steps, *types):
    (type,) = SPEC.infer(types, attrs(steps, *(t.dtype for t in types)), 1)
    return type


@pytest.mark.parametrize(
    ("steps", "types", "result"),
    [
        (["Add(x0, x1)"], [T((2, 1)), T((3,))], T((2, 3))),
        (["Equal(x0, x1)", "Cast(t0, to=float32)"], [T((2, 1), "int32"), T((3,), "int32")], T((2, 3))),
        (["Where(x0, x1, x2)", "Less(t0, x2)"], [T((4,), "bool"), T(()), T((4,))], T((4,), "bool")),
        (["Sum(x0, x1, x2)", "Mul(t0, t0)"], [T((4,)), T((1,)), T((4,))], T((4,))),
        (["Masked(x0, x1, invert=1)", "Gelu(t0, approximate=tanh)"], [T((4,)), T((4,), "bool")], T((4,))),
    ],
)
def test_types(steps, types, result):
    assert infer(steps, *types) == result


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([], "1 to 32 steps, not 0"),
        (["Neg(x0)", *(f"Neg(t{i})" for i in range(MAX_STEPS))], "1 to 32 steps, not 33"),
        (["Neg(x1)"], "reads x1, which is no input and no step before it"),
        (["Neg(t0)"], "reads t0"),
        (["Neg(x0)", "Exp(x0)"], "no step reads t0"),
        (["Neg(x00)"], "'x00' is no operand, such as x0 or t1, and no attribute"),
        (["Neg(x0, x0)"], "2 operands, which Neg does not take"),
        (["Neg()"], "'' is no operand"),
        (["Sum()"], "'' is no operand"),
        (["Add(x0,x0)"], "'x0,x0' is no operand"),
        (["MatMul(x0, x0)"], "not an elementwise op"),
        (["Elementwise(x0)"], "not an elementwise op"),
        (["SGD(x0, x0, x0)"], "not an elementwise op"),
        (["__import__(x0)"], "not an elementwise op"),
        (["Neg(x0); import os"], "not an elementwise op"),
        (["Neg(x0)\nimport os"], "not an elementwise op"),
        (["Cast(x0, to=float32(x0))"], "float32\\(x0\\)"),
        (["Cast(x0, to=__import__)"], "dtype '__import__'"),
        (["Cast(x0)"], "needs the attribute 'to'"),
        (["Clip(x0, max=open)"], "'open' is not a number"),
        (["Clip(x0, max=[1])"], "attribute max"),
        (["Clip(x0, max=6)"], "must be written as 'Clip\\(x0, max=6.0\\)'"),
        (["Clip(x0, min=0.0, max=6.0)"], "must be written as 'Clip\\(x0, max=6.0, min=0.0\\)'"),
        (["Clip(x0, max=6.0, x0)"], "'x0' is no operand"),
        (["Elu(x0, alpha=1.0)"], "must be written as 'Elu\\(x0\\)'"),
        (["Elu(x0, beta=1.0)"], "has no attribute 'beta'"),
        ([f"Clip(x0, max={'9' * 500})"], "not an elementwise op"),
        (["Add(x0, x0)", "And(t0, t0)"], "step t1, And\\(t0, t0\\): dtype float32 is not one of bool"),
    ],
)
def test_text_that_is_no_chain_is_refused(steps, match):
    with pytest.raises(TypeInferenceError, match=match):
        infer(steps, T((4,)))


def test_inputs_are_those_that_dtypes_lists():
    with pytest.raises(TypeInferenceError, match="lists 2 inputs, the node has 1"):
        SPEC.infer([T((4,))], attrs(["Add(x0, x1)"], "float32", "float32"), 1)
    with pytest.raises(TypeInferenceError, match="float32 is both float32 and float64"):
        SPEC.infer([T((4,)), T((4,), "float64")], attrs(["Add(x0, x1)"], "float32", "float32"), 1)
    with pytest.raises(TypeInferenceError, match="no step reads x1"):
        SPEC.infer([T((4,)), T((4,))], attrs(["Neg(x0)"], "float32", "float32"), 1)
    with pytest.raises(TypeInferenceError, match="lists 'complex64'"):
        SPEC.infer([T((4,))], attrs(["Neg(x0)"], "complex64"), 1)


def test_a_text_graph_says_where_it_is_wrong():
    with pytest.raises(ParseError, match=r"line 1.*reads t3"):
        parse('graph "g" { input %x: f32[2] %y = Elementwise(%x) {dtypes=["float32"], steps=["Neg(t3)"]} output %y }')


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_every_elementwise_op_is_a_step(spec):
    given = {"Cast": {"to": "int8"}, "ExtremumGrad": {"index": 0}, "Clip": {"min": float("-inf"), "max": 1e-5}}
    full = spec.complete_attrs(given.get(spec.name, {}))
    dtypes = ["float32"] * max(spec.min_inputs, 1)
    chain = chain_of(spec.name, full, dtypes)
    assert dict(chain.steps[0].attrs) == full
    assert chain_of(FUSED, attrs(chain.attrs["steps"], *dtypes), dtypes) == chain


def test_what_cannot_be_a_step():
    assert chain_of("MatMul", {}, ["float32", "float32"]) is None
    assert chain_of("EluGrad", {"alpha": 1.0, "of": "a, b"}, ["float32", "float32"]) is None


def test_chains_are_joined_by_their_keys():
    add, mul = (chain_of(op, {}, ["float32", "float32"]) for op in ("Add", "Mul"))
    square, keys = join_chains(mul, ["t", "t"], add, ["a", "b"], "t")
    assert (square.attrs["steps"], keys) == (("Add(x0, x1)", "Mul(t0, t0)"), ["a", "b"])
    whole, keys = join_chains(add, ["b", "u"], square, keys, "u")
    assert (whole.attrs["steps"], keys) == (("Add(x0, x1)", "Mul(t0, t0)", "Add(x1, t1)"), ["a", "b"])
    same, keys = join_chains(add, ["t", "a"], mul, ["a", "a"], "t")
    assert (same.attrs["steps"], keys) == (("Mul(x0, x0)", "Add(t0, x0)"), ["a"])
    assert same.dtypes == ("float32",)


def one_by_one(chain, arrays):
    """What the ops make one after the other, each with its own kernel."""
    known = {f"x{i}": array for i, array in enumerate(arrays)}
    for number, step in enumerate(chain.steps):
        operands = [known[name] for name in step.operands]
        types = tuple(T(a.shape, a.dtype.name) for a in operands)
        result = step.spec.infer(types, dict(step.attrs), 1)
        known[f"t{number}"] = run(step.spec, types, result[0], dict(step.attrs), operands)
    return known[f"t{len(chain.steps) - 1}"]


def run(spec, types, result, given, arrays, out=None):
    call = spec.kernel(KernelQuery(tuple(types), (result,), given))
    out = np.empty(result.shape, result.dtype) if out is None else out
    assert run_kernel(call, [out, *arrays]) == 0
    return out


MIXED = (
    ["Add(x0, x1)", "Mul(t0, t0)", "Cast(t1, to=float32)", "Sigmoid(t2)", "Cast(t3, to=float64)", "Sub(x2, t4)",
     "Less(t5, t4)", "Where(t6, t2, t3)"],
    [T((3, 5), "int8"), T((5,), "int8"), T((3, 1), "float64")],
)  # fmt: skip
WRAPS = (
    ["Mul(x0, x0)", "Add(t0, x0)", "Div(t1, x1)", "Cast(t2, to=int32)", "Sub(t3, x2)", "Cast(t4, to=uint8)"],
    [T((40,), "uint8"), T((), "uint8"), T((40,), "int32")],
)
ROUNDS = (["Mul(x0, x1)", "Add(t0, x1)", "Sub(t1, t0)", "Div(t2, x0)"], [T((300,)), T((300,))])


@pytest.mark.parametrize(("steps", "types"), [MIXED, WRAPS, ROUNDS], ids=["mixed", "wraps", "rounds"])
def test_one_loop_makes_the_bits_of_many(steps, types):
    given = attrs(steps, *(t.dtype for t in types))
    chain, rng = chain_of(FUSED, given, [t.dtype for t in types]), np.random.default_rng(3)
    arrays = [np.asarray(rng.uniform(-120, 120, t.shape)).astype("int64").astype(t.dtype) for t in types]
    if types[0].dtype == "float32":
        arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in types]
    (result,) = SPEC.infer(types, given, 1)
    got = run(SPEC, types, result, given, arrays)
    want = one_by_one(chain, arrays)
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()
    (reference,) = SPEC.reference(arrays, given, [result])
    np.testing.assert_allclose(got, reference, rtol=1e-6)
    for i in range(len(types)):
        if SPEC.inplace[i].condition(types, [result], given) is None:
            over = [array.copy() for array in arrays]
            assert run(SPEC, types, result, given, over, over[i].view(result.dtype)).tobytes() == want.tobytes()


def test_in_place_pairs():
    types = [T((3, 5), "int32"), T((5,), "int32"), T((3, 5), "int8")]
    steps = ["Add(x0, x1)", "Cast(t0, to=float32)", "Cast(x2, to=float32)", "Mul(t1, t2)"]
    given = attrs(steps, *(t.dtype for t in types))
    texts = [pair.condition(types, [T((3, 5))], given) for pair in SPEC.inplace[:4]]
    assert texts[0] is None
    assert "broadcast" in texts[1]
    assert "width" in texts[2]
    assert texts[3] == "operand absent"
    assert all(pair.repeats for pair in SPEC.inplace)


def test_a_device_may_want_another_dtype():
    """What the graph calls float64 is float32 there, within the chain too."""
    steps = ["Cast(x0, to=float64)", "Add(t0, x1)", "Cast(t1, to=int32)"]
    given = attrs(steps, "int8", "float64")
    placed = (T((4,), "int8"), T((4,)))
    call = SPEC.kernel(KernelQuery(placed, (T((4,), "int32"),), given))
    assert call.expression == "t0 = float32(float32(x0)); t1 = float32(add(t0, x1)); int32(t1)"
    only_last = attrs(["Neg(x0)", "Cast(t0, to=float64)"], "int8")
    call = SPEC.kernel(KernelQuery((T((4,), "int8"),), (T((4,)),), only_last))
    assert call.expression == "t0 = int8(neg(x0)); float32(t0)"
    arrays = [np.arange(4, dtype=np.int8), np.full(4, 0.25, np.float32)]
    (got,) = SPEC.reference(arrays, given, [T((4,), "int32")])
    np.testing.assert_array_equal(got, np.arange(4, dtype=np.int32))


@pytest.mark.parametrize(
    ("steps", "types"),
    [
        (["Neg(x0)", "Exp(t0)"], [T((4,), "float16")]),
        (["Cast(x0, to=float16)", "Cast(t0, to=float32)"], [T((4,))]),
        (["Clip(x0, min=1.0)", "Cast(t0, to=float32)"], [T((4,), "uint64")]),
        (["Sum(" + ", ".join(f"x{i}" for i in range(17)) + ")"], [T((4,))] * 17),
    ],
)
def test_no_kernel(steps, types):
    given = attrs(steps, *(t.dtype for t in types))
    (result,) = SPEC.infer(types, given, 1)
    assert SPEC.kernel(KernelQuery(tuple(types), (result,), given)) is None
    arrays = [np.arange(4).astype(t.dtype) for t in types]
    (got,) = SPEC.reference(arrays, given, [result])
    assert got.dtype == result.dtype


def test_a_chain_without_a_kernel_runs_as_a_host_call():
    text = """graph "g" { input %x: f16[2,3]
    %y = Elementwise(%x) {dtypes=["float16"], steps=["Exp(x0)", "Add(t0, x0)"]} output %y }"""
    graph, x = parse(text), np.linspace(-1, 1, 6, dtype=np.float16).reshape(2, 3)
    results = compile(graph).run({"x": x})
    assert len(results.host_calls) == 1
    np.testing.assert_array_equal(results["y"], np.exp(x.astype(np.float32)).astype(np.float16) + x)


# -- the loop's expression --------------------------------------------------------------------------------------------


def text_of(expression, num_inputs=1):
    arrays = get_op("Sum").kernel(KernelQuery((T((8,)),) * num_inputs, (T((8,)),), {})).arrays
    return generate("flat", KernelCall("elementwise.flat", arrays, (), expression))


def test_named_results_are_computed_once():
    text = text_of("t0 = exp(x0); t1 = float32(mul(t0, t0)); add(t1, t0)")
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("t0 = exp(v0[i])")
    assert lines[at + 1 : at + 3] == ["t1 = float32(mul(t0, t0))", "block[i] = add(t1, t0)"]


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("", "not an expression"),
        ("t0 = exp(x0)", "in the place of an expression"),
        ("t1 = exp(x0); exp(t1)", "in the place of t0 = "),
        ("x0 = exp(x0); exp(x0)", "in the place of t0"),
        ("exp = x0; exp(x0)", "in the place of t0"),
        ("t0 = t0; exp(t0)", "holds 't0'"),
        ("t0: int = exp(x0); exp(t0)", "in the place of t0"),
        ("t0 = t1 = exp(x0); exp(t0)", "in the place of t0"),
        ("import os; exp(x0)", "in the place of t0"),
        ("t0 = exp(x0)\nfor i in x0: pass\nexp(t0)", "in the place of t1"),
        ("t0 = x0.dtype; exp(t0)", "x0.dtype"),
        ("t0 = eval(x0); exp(t0)", "calls eval"),
        ("t0 = exp; exp(t0)", "holds 'exp'"),
    ],
)
def test_hostile_statements_are_refused(expression, match):
    with pytest.raises(OptionError, match=match):
        text_of(expression)


def test_steps_name_no_scalar_function():
    assert not any(Step(op.name, ("x0",)).op in SCALAR_FUNCTIONS for op in OPS)
    assert isinstance(chain_of("Neg", {}, ["float32"]), Chain)
