"""`Elementwise`: a chain of elementwise ops as one op. Its steps are text; all else follows from the ops that it names.

    Elementwise(%x, %three, %six) {dtypes=["float32", "float32", "float32"],
                                   steps=["Add(x0, x1)", "Clip(t0, max=6.0, min=0.0)", "Mul(x0, t1)", "Div(t2, x2)"]}

`x<i>` is input i, `t<j>` the result of step j; the last step's result is the op's. A step is an elementwise op with
the attributes that differ from the op's defaults.

Holds true: a chain makes the same bits as its ops one after the other. Types are what the ops infer, the reference runs
the ops' references, and the kernel is one loop over the ops' forms in which each step's result has its step's dtype.
Text that is not exactly what `Step` writes is refused, so a graph from a file can name nothing but these ops.

`dtypes` are those of the inputs in the graph. A device that wants others gives others, and what stands for float64
there does so in every step, as if the ops ran one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from memopt.errors import MemoptError, TypeInferenceError
from memopt.ops import elementwise
from memopt.ops.elementwise_infer import inplace_over, present
from memopt.ops.elementwise_loops import in_steps, loop_call
from memopt.ops.items import broadcast_items
from memopt.ops.spec import (
    ANY_LAYOUT,
    Array,
    Attr,
    Attrs,
    AttrValue,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Types,
)
from memopt.types import DTYPES, TensorType

__all__ = ["FUSED", "MAX_STEPS", "OPS", "Chain", "Step", "chain_of", "join_chains"]

#: The op's name.
FUSED = "Elementwise"
#: A longer chain is refused: each step is code to compile.
MAX_STEPS = 32
_MAX_TEXT = 400
_NUM_PAIRS = 32

_SPECS = {spec.name: spec for spec in elementwise.OPS}
_STEP = re.compile(r"(\w+)\((.*)\)", re.ASCII)
_OPERAND = re.compile(r"([xt])(0|[1-9]\d{0,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a chain: operands are `x<i>` and `t<j>`; attributes are complete."""

    op: str
    operands: tuple[str, ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    def __str__(self) -> str:
        spec = _SPECS[self.op]
        shown = [f"{k}={_text(v)}" for k, v in self.attrs if _text(v) != _text(spec.attrs[k].default)]
        return f"{self.op}({', '.join((*self.operands, *shown))})"

    @property
    def spec(self) -> OpSpec:
        return _SPECS[self.op]


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of an `Elementwise` node, and the dtypes of its inputs in the graph."""

    steps: tuple[Step, ...]
    dtypes: tuple[str, ...]

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """The node's attributes."""
        return {"dtypes": self.dtypes, "steps": tuple(str(step) for step in self.steps)}

    def types(self, inputs: Sequence[TensorType], output: TensorType | None = None) -> list[TensorType]:
        """The type of each step's result, for inputs (and an output) as placed on a device.

        Raises `TypeInferenceError`.
        """
        if len(inputs) != len(self.dtypes):
            raise TypeInferenceError(f"dtypes lists {len(self.dtypes)} inputs, the node has {len(inputs)}")
        known = {f"x{i}": t.with_dtype(dtype) for i, (t, dtype) in enumerate(zip(inputs, self.dtypes, strict=True))}
        found = []
        for number, step in enumerate(self.steps):
            try:
                operands = [known[name] for name in step.operands]
                (type,) = step.spec.infer(operands, dict(step.attrs), 1)
            except TypeInferenceError as error:
                raise TypeInferenceError(f"step t{number}, {step}: {error}") from None
            known[f"t{number}"] = type
            found.append(type)
        placed = self._placed([*inputs, *([output] if output is not None else [])], found[-1].dtype)
        return [type.with_dtype(placed.get(type.dtype, type.dtype)) for type in found]

    def _placed(self, types: Sequence[TensorType], last: str) -> dict[str, str]:
        """dtype in the graph -> dtype where the node runs."""
        placed: dict[str, str] = {}
        for dtype, type in zip((*self.dtypes, last), types, strict=False):
            if placed.setdefault(dtype, type.dtype) != type.dtype:
                raise TypeInferenceError(f"{dtype} is both {placed[dtype]} and {type.dtype} here: dtypes={self.dtypes}")
        return placed


def chain_of(op: str, attrs: Attrs, dtypes: Sequence[str]) -> Chain | None:
    """What a node does, as a chain: a fused node's own steps, or the one step of an elementwise node; else None.

    `dtypes` are those of the node's inputs.
    """
    if op == FUSED:
        return _chain(attrs)
    if op not in _SPECS:
        return None
    step = Step(op, tuple(f"x{i}" for i in range(len(dtypes))), tuple(sorted(attrs.items())))
    try:
        return Chain((step,), tuple(dtypes)) if _parsed(str(step)) == step else None
    except TypeInferenceError:  # an attribute that cannot be written, such as text with a comma
        return None


def join_chains(
    outer: Chain, outer_keys: Sequence[Hashable], inner: Chain, inner_keys: Sequence[Hashable], through: Hashable
) -> tuple[Chain, list[Any]]:
    """The chain of `inner`, then `outer`, which reads the result of `inner` wherever its input has the key `through`.

    Keys name inputs: those of one key become one input. Returns the keys of the whole chain's inputs, in their order.
    """
    dtypes: dict[Any, str] = {}
    steps: list[Step] = []
    for chain, keys in ((inner, inner_keys), (outer, outer_keys)):
        base = len(steps)
        for step in chain.steps:
            operands = []
            for name in step.operands:
                index = int(name[1:])
                if name[0] == "t":
                    operands.append(f"t{base + index}")
                elif base and keys[index] == through:
                    operands.append(f"t{base - 1}")
                else:
                    dtypes.setdefault(keys[index], chain.dtypes[index])
                    operands.append(f"x{list(dtypes).index(keys[index])}")
            steps.append(Step(step.op, tuple(operands), step.attrs))
    return Chain(tuple(steps), tuple(dtypes.values())), list(dtypes)


# -- text -------------------------------------------------------------------------------------------------------------


def _text(value: AttrValue | None) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(text: str) -> Step:
    """The step that `text` is; raises `TypeInferenceError` for any other text than `Step` writes."""
    match = _STEP.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None or match[1] not in _SPECS:
        shown = text if len(text) <= _MAX_TEXT else f"{text[:40]}…"
        raise TypeInferenceError(f"step {shown!r} is not an elementwise op, such as 'Clip(t0, max=6.0)'")
    spec = _SPECS[match[1]]
    parts = match[2].split(", ")
    operands = tuple(part for part in parts if _OPERAND.fullmatch(part))
    attrs: dict[str, Any] = {}
    for part in parts[len(operands) :]:
        name, equals, value = part.partition("=")
        if not equals:
            raise TypeInferenceError(f"step {text!r}: {part!r} is no operand, such as x0 or t1, and no attribute")
        attrs[name] = value if name in spec.attrs and spec.attrs[name].kind == "str" else _number(text, value)
    step = Step(spec.name, operands, tuple(spec.complete_attrs(attrs).items()))
    if str(step) != text:
        raise TypeInferenceError(f"step {text!r} must be written as {str(step)!r}")
    return step


def _number(text: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise TypeInferenceError(f"step {text!r}: {value!r} is not a number") from None


def _chain(attrs: Attrs) -> Chain:
    """The chain that the attributes of an `Elementwise` node list; raises `TypeInferenceError`."""
    return _checked_chain(attrs["steps"], attrs["dtypes"])


@lru_cache(maxsize=4096)
def _checked_chain(texts: tuple[str, ...], dtypes: tuple[str, ...]) -> Chain:
    if not 1 <= len(texts) <= MAX_STEPS:
        raise TypeInferenceError(f"a chain has 1 to {MAX_STEPS} steps, not {len(texts)}")
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown:
        raise TypeInferenceError(f"dtypes lists {unknown[0]!r}; the dtypes are {', '.join(DTYPES)}")
    steps = tuple(_parsed(text) for text in texts)
    unread = dict.fromkeys(f"x{i}" for i in range(len(dtypes)))
    known = set(unread)
    for number, step in enumerate(steps):
        _check_operands(step, known)
        for name in step.operands:
            unread.pop(name, None)
        known.add(f"t{number}")
        unread[f"t{number}"] = None
    del unread[f"t{len(steps) - 1}"]
    if unread:
        raise TypeInferenceError(f"no step reads {', '.join(unread)}")
    return Chain(steps, dtypes)


def _check_operands(step: Step, known: set[str]) -> None:
    missing = [name for name in step.operands if name not in known]
    if missing:
        raise TypeInferenceError(f"step {str(step)!r} reads {missing[0]}, which is no input and no step before it")
    least, most = step.spec.min_inputs, step.spec.max_inputs
    if len(step.operands) < max(least, 1) or (most is not None and len(step.operands) > most):
        raise TypeInferenceError(f"step {str(step)!r} has {len(step.operands)} operands, which {step.op} does not take")


# -- the op -----------------------------------------------------------------------------------------------------------


def _infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    chain = _chain(attrs)
    return [chain.types(present(types))[-1]]


def _reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    chain = _chain(attrs)
    given = [array for array in arrays if array is not None]
    types = chain.types([TensorType(array.shape, array.dtype.name) for array in given], outputs[0])
    known = {f"x{i}": array for i, array in enumerate(given)}
    for number, (step, type) in enumerate(zip(chain.steps, types, strict=True)):
        operands = [known[name] for name in step.operands]
        (known[f"t{number}"],) = step.spec.reference(operands, dict(step.attrs), [type])
    return [known[f"t{len(types) - 1}"]]


def _kernel(query: KernelQuery) -> KernelCall | None:
    chain = _chain(query.attrs)
    inputs, output = [t for t in query.inputs if t is not None], query.outputs[0]
    if output is None:
        return None
    try:
        results = chain.types(inputs, output)
    except MemoptError:  # types that the ops do not take, once placed
        return None
    known = {f"x{i}": type for i, type in enumerate(inputs)} | {f"t{i}": type for i, type in enumerate(results)}
    steps = []
    for step, result in zip(chain.steps, results, strict=True):
        form = elementwise.scalar_form(step.op, [known[name] for name in step.operands], result, dict(step.attrs))
        if form is None or result.dtype == "float16":
            return None
        steps.append((form, step.operands, result.dtype))
    placed = [query.stride_of(i) for i in range(len(inputs))]
    return loop_call(in_steps(steps), inputs, output, query.layout, placed)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name=FUSED,
        inputs=(Input("X", variadic=True),),
        outputs=(Output("Y"),),
        infer=_infer,
        reference=_reference,
        attrs={"dtypes": Attr("strs", required=True), "steps": Attr("strs", required=True)},
        inplace=tuple(InplacePair(0, i, inplace_over(i), repeats=True) for i in range(_NUM_PAIRS)),
        kernel=_kernel,
        strided=(-1,),
        items=broadcast_items,
        layouts=(ANY_LAYOUT,),
    ),
)
