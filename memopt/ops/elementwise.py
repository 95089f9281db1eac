"""Ops: elementwise, by their ONNX names, with ONNX semantics and NumPy broadcasting.

Holds true: what an op does to one element is a `ScalarForm`, an expression of the scalar functions of
`memopt.kernels.elementwise`. A chain of ops is the expression of their expressions, so a fused node needs no kernel of
its own: `compose` the forms, then `loop_call(form, inputs, output)`.

Integer `Div` truncates and gives 0 for x / 0; integer `Pow` wraps, and is 0 for negative exponents (but of 1 and -1);
`Cast` of a float that does not fit an integer dtype gives an unspecified value and never an error. `Clip` has its
limits as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memopt.ops import elementwise_infer as rules
from memopt.ops.elementwise_entry import Entry, FormRule, calls, float_attr
from memopt.ops.elementwise_grad import MEANINGS as GRADIENT_MEANINGS
from memopt.ops.elementwise_grad import TABLE as GRADIENT_TABLE
from memopt.ops.elementwise_infer import ANY, BOOL, FLOAT, NUMBER, inplace_over, same_dtype
from memopt.ops.elementwise_loops import ScalarForm, compose, loop_call
from memopt.ops.elementwise_math import MEANINGS, clip_limits, reference_of
from memopt.ops.elementwise_rules import GRADIENTS
from memopt.ops.items import broadcast_items
from memopt.ops.spec import (
    ANY_LAYOUT,
    Attr,
    Attrs,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
)
from memopt.types import TensorType

__all__ = ["OPS", "ScalarForm", "compose", "loop_call", "scalar_form"]

#: A variadic op lists this many in-place pairs: an output over its 33rd input is not offered.
_VARIADIC_PAIRS = 32


def _chain(function: str, count: int) -> str:
    """`f(f(x0, x1), x2)`, and so on."""
    text = "x0"
    for i in range(1, count):
        text = f"{function}({text}, x{i})"
    return text


def _chained(function: str) -> FormRule:
    return lambda inputs, output, attrs: ScalarForm(_chain(function, len(inputs)))


def _mean(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm | None:
    return ScalarForm(f"div({_chain('add', len(inputs))}, s0)", (float(len(inputs)),))


def _clip(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm | None:
    if output.dtype == "uint64":
        return None  # its limits do not fit the int64 words of a frame
    text = "x0"
    scalars: list[int | float] = []
    for function, limit in zip(("at_least", "at_most"), clip_limits(attrs, output.dtype), strict=True):
        if limit is not None:
            text = f"{function}({text}, s{len(scalars)})"
            scalars.append(limit)
    return ScalarForm(text, tuple(scalars))


def _cast(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm | None:
    to = output.dtype
    if to == "float16" or inputs[0].dtype == "float16":
        return None
    if inputs[0].dtype in FLOAT and to in ("int8", "int16", "uint8", "uint16"):
        return ScalarForm(f"{to}(int32(x0))")
    return ScalarForm("bool_(x0)" if to == "bool" else f"{to}(x0)")


def _gelu(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm | None:
    return ScalarForm("gelu_tanh(x0)" if attrs["approximate"] == "tanh" else "gelu(x0)")


def _plain(dtypes: Sequence[str], result: str | None = None, **functions: str) -> list[Entry]:
    """Ops of one operand with no attributes: ONNX name = scalar function."""
    return [Entry(name, ("X",), same_dtype(dtypes, result), calls(function)) for name, function in functions.items()]


def _pairs(dtypes: Sequence[str], result: str | None = None, **functions: str) -> list[Entry]:
    """Ops of two operands of one dtype."""
    infer = same_dtype(dtypes, result)
    return [Entry(name, ("A", "B"), infer, calls(function)) for name, function in functions.items()]


_SELU = {"alpha": float_attr(1.67326319217681884765625), "gamma": float_attr(1.05070102214813232421875)}
_TABLE: list[Entry] = [
    *_plain(NUMBER, Abs="absolute", Neg="neg", Relu="relu", Sign="sign"),
    *_plain(FLOAT, Exp="exp", Log="log", Sqrt="sqrt", Reciprocal="reciprocal", Sigmoid="sigmoid", Tanh="tanh"),
    *_plain(FLOAT, HardSwish="hard_swish", Floor="floor", Ceil="ceil", Round="rint", Sin="sin", Cos="cos", Erf="erf"),
    *_plain(FLOAT, Softplus="softplus", Softsign="softsign"),
    *_plain(BOOL, Not="logical_not"),
    Entry("LeakyRelu", ("X",), same_dtype(FLOAT), calls("leaky_relu", "alpha"), {"alpha": float_attr(0.01)}),
    Entry("Elu", ("X",), same_dtype(FLOAT), calls("elu", "alpha"), {"alpha": float_attr(1.0)}),
    Entry("Selu", ("X",), same_dtype(FLOAT), calls("selu", "alpha", "gamma"), _SELU),
    Entry(
        "HardSigmoid",
        ("X",),
        same_dtype(FLOAT),
        calls("hard_sigmoid", "alpha", "beta"),
        {"alpha": float_attr(0.2), "beta": float_attr(0.5)},
    ),
    Entry("Clip", ("X",), same_dtype(NUMBER), _clip, {"min": Attr("float"), "max": Attr("float")}),
    Entry("Gelu", ("X",), rules.infer_gelu, _gelu, {"approximate": Attr("str", "none")}),
    Entry("Cast", ("X",), rules.infer_cast, _cast, {"to": Attr("str", required=True)}),
    *_pairs(NUMBER, Add="add", Sub="sub", Mul="mul", Div="div"),
    Entry("Pow", ("X", "Y"), rules.infer_pow, calls("power")),
    Entry("PRelu", ("X", "slope"), rules.infer_prelu, calls("prelu")),
    Entry("Min", ("*X",), same_dtype(NUMBER), _chained("minimum")),
    Entry("Max", ("*X",), same_dtype(NUMBER), _chained("maximum")),
    Entry("Sum", ("*X",), same_dtype(NUMBER), _chained("add")),
    Entry("Mean", ("*X",), same_dtype(FLOAT), _mean),
    *_pairs(ANY, "bool", Equal="equal"),
    *_pairs(NUMBER, "bool", Less="less", LessOrEqual="less_equal", Greater="greater", GreaterOrEqual="greater_equal"),
    *_pairs(BOOL, And="logical_and", Or="logical_or"),
    Entry("Where", ("condition", "X", "Y"), rules.infer_where, calls("where")),
    *GRADIENT_TABLE,
]
_MEANINGS = {**MEANINGS, **GRADIENT_MEANINGS}
_FORMS = {entry.name: entry.form for entry in _TABLE}


def scalar_form(op: str, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> ScalarForm | None:
    """What the elementwise op named `op` does to one element of these types; None if it has no kernel for them, or `op`
    is not elementwise. For composing chains: substitute for x0, x1, … and renumber s0, s1, …"""
    form = _FORMS.get(op)
    return None if form is None else form(inputs, output, attrs)


def _kernel(name: str) -> Callable[[KernelQuery], KernelCall | None]:
    def kernel(query: KernelQuery) -> KernelCall | None:
        inputs = [t for t in query.inputs if t is not None]
        output = query.outputs[0]
        if output is None:
            return None
        form = scalar_form(name, inputs, output, query.attrs)
        placed = [query.stride_of(i) for i in range(len(inputs))]
        return None if form is None else loop_call(form, inputs, output, query.layout, placed)

    return kernel


def _spec(entry: Entry) -> OpSpec:
    variadic = entry.inputs[-1].startswith("*")
    num_pairs = _VARIADIC_PAIRS if variadic else len(entry.inputs)
    return OpSpec(
        name=entry.name,
        inputs=tuple(Input(name.removeprefix("*"), variadic=name.startswith("*")) for name in entry.inputs),
        outputs=(Output("Y"),),
        infer=entry.infer,
        reference=reference_of(_MEANINGS[entry.name]),
        attrs=entry.attrs,
        inplace=tuple(InplacePair(0, i, inplace_over(i), repeats=True) for i in range(num_pairs)),
        kernel=_kernel(entry.name),
        strided=(-1,),
        items=broadcast_items,
        layouts=(ANY_LAYOUT,),
        gradient=GRADIENTS.get(entry.name),
    )


OPS: tuple[OpSpec, ...] = tuple(_spec(entry) for entry in _TABLE)
