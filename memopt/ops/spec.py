"""`OpSpec`: everything the compiler knows of one op, in one entry.

Holds true: an `OpSpec` is data and pure functions of types and attributes. It imports no kernel and no numba; a
kernel is named (`KernelCall.kernel`) and looked up by the runtime in `memopt/kernels/`, in the file of the same name as
the op's family.

Forward ops have their ONNX names and attributes, with one difference: what ONNX passes as a small constant *input*
(the shape of `Reshape`, the axes of `Squeeze`, the limits of `Clip`, the pads of `Pad`) is an *attribute* here, since
memopt plans static shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops.promises import (
    Attrs,
    AttrValue,
    InplaceCondition,
    InplacePair,
    ItemRule,
    Join,
    JoinStrides,
    Types,
    View,
    ViewStrides,
)
from memopt.strides import Strides
from memopt.types import TensorType

__all__ = [
    "ANY_LAYOUT",
    "DEFAULT_LAYOUT",
    "ArrayArg",
    "Attr",
    "AttrValue",
    "Attrs",
    "GradientRule",
    "InplaceCondition",
    "InplacePair",
    "Input",
    "ItemRule",
    "Join",
    "JoinStrides",
    "KernelCall",
    "KernelQuery",
    "OpSpec",
    "Output",
    "Routine",
    "Types",
    "View",
    "ViewStrides",
    "scratch_limit",
]

Array = NDArray[Any]

#: The layout in which a tensor's bytes follow its logical shape.
DEFAULT_LAYOUT = "NCHW"
#: A kernel that reads each element for itself takes any layout, if all its operands have the same one.
ANY_LAYOUT = "any"

#: Default upper bound of the scratch that one kernel call may ask for, in bytes.
_SCRATCH_LIMIT = 1 << 20


def scratch_limit() -> int:
    """Bytes of scratch that one kernel call may plan by default (1 MiB)."""
    return _SCRATCH_LIMIT


@dataclass(frozen=True, slots=True)
class Input:
    """One input slot. The last slot of an op may be variadic: it takes the rest of the inputs.

    `reads="shape"` says that no kernel touches the bytes: such a reader keeps nobody alive and is never transferred.
    """

    name: str
    optional: bool = False
    variadic: bool = False
    reads: Literal["data", "shape"] = "data"


@dataclass(frozen=True, slots=True)
class Output:
    """One output slot; a variadic last slot stands for any number of outputs."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its Python type ("int", "float", "str", "bool", "ints", "floats", "strs") and default.

    `default=None` with `required=False` means that the attribute may be absent.
    """

    kind: Literal["int", "float", "str", "bool", "ints", "floats", "strs"]
    default: AttrValue | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class ArrayArg:
    """How a kernel sees one operand: which one it is, as which shape and dtype (contiguous, C order).

    `role` is "in", "out" or "scratch"; `index` counts within the role (position in the node's inputs or outputs). The
    dtype may be a same-width stand-in ("uint32" for data movement); the shape any that has as many bytes.
    """

    role: Literal["in", "out", "scratch"]
    index: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Routine:
    """A scalar argument that stands for the address of a BLAS routine, such as `Routine("sgemm")`."""

    name: str


Scalar = int | float | Routine


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of one kernel: its name, how it sees its operands, and its scalar arguments.

    `kernel` is "family.function": `memopt.kernels.<family>` holds a function of that name with the signature
    `function(*arrays, *scalars) -> int` (0 is success), in the order given here, outputs first. The compiled variant
    is chosen by the kernel's name, the dtypes and ranks of the arrays, the kinds of the scalars and `expression`.
    `expression` serves generated elementwise loops: a scalar expression over `x0, x1, …` (the input arrays in order)
    that uses the scalar functions of `memopt.kernels.elementwise`, such as `"add(x0, relu(x1))"`.
    """

    kernel: str
    arrays: tuple[ArrayArg, ...]
    scalars: tuple[Scalar, ...] = ()
    expression: str = ""


@dataclass(frozen=True, slots=True)
class KernelQuery:
    """What a kernel is asked for: operand types *as placed* (dtype after any transfer; shapes stay logical),
    attributes, the layout of rank-4 data ("NCHW" or "NHWC"), and how many bytes of scratch it may use.

    `strides[i]` is how input `i` steps through its storage, None where it is contiguous; () if all are. A kernel that
    takes such an input sees its whole extent as one flat array. `out_strides` are those of outputs, which no kernel
    takes. Ask `choose_calls`, which knows who can, and what can be done item by item.
    """

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]
    attrs: Attrs
    layout: str = DEFAULT_LAYOUT
    scratch_bytes: int = _SCRATCH_LIMIT
    strides: tuple[Strides | None, ...] = ()
    out_strides: tuple[Strides | None, ...] = ()

    def stride_of(self, index: int) -> Strides | None:
        """The strides of input `index`, None where it is contiguous."""
        return self.strides[index] if index < len(self.strides) else None

    def out_stride_of(self, index: int) -> Strides | None:
        """The strides of output `index`, None where it is contiguous."""
        return self.out_strides[index] if index < len(self.out_strides) else None


Infer = Callable[[Types, Attrs, int], Sequence[TensorType]]
Reference = Callable[[Sequence[Array | None], Attrs, Sequence[TensorType]], Sequence[Array]]
ChooseKernel = Callable[[KernelQuery], "KernelCall | None"]


@dataclass(frozen=True, slots=True)
class GradientRule:
    """How to differentiate an op, in terms of other ops.

    `build(builder, node, output_grads)` adds nodes through the builder and returns one gradient per input (None where
    there is none). `needs_inputs` and `needs_outputs` say whose *data* the added nodes read; all else they read by
    shape only.
    """

    build: Callable[[Any, Any, Sequence[Any]], Sequence[Any]]
    needs_inputs: tuple[int, ...] = ()
    needs_outputs: tuple[int, ...] = ()


def _no_kernel(query: KernelQuery) -> KernelCall | None:
    return None


def _no_workspace(query: KernelQuery) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class OpSpec:
    """All that is known of one op.

    name        the ONNX name, or memopt's own for updates and gradients
    inputs      the input slots, in order           outputs   the output slots, in order
    infer       `infer(input_types, attrs, num_outputs) -> output types` (as many as asked for, variadic ones included);
                raises `TypeInferenceError`
    reference   `reference(arrays, attrs, output_types) -> arrays`: NumPy, never in place, never a view of an input; the
                oracle's and the host call's implementation. Arrays have exactly the output types' shapes and dtypes.
    attrs       the attributes, with kinds and defaults
    views       outputs that hold bytes of an input      joins     outputs that hold all bytes of inputs
    inplace     pairs that may be computed in place
    updates     output -> input: that output is written to the input's *variable* by definition
    random      whether it draws numbers (from its `seed` attribute: recomputation replays it)
    workspace   `workspace(query) -> bytes` of scratch that the kernel needs, planned, never hidden
    kernel      `kernel(query) -> KernelCall | None`; None means there is none for these types and it runs as a host
                call
    strided     the inputs that its kernel reads in strides, if it has one for them (-1: every input); the kernel
                must look at `query.strides` for these, and may return None
    items       whether a call can be done item by item of axis 0 (see `ItemRule`); then its outputs may be written, and
                its inputs read, where the items of axis 0 lie apart
    layouts     layouts of rank-4 data that the kernel takes besides NCHW; "any" for elementwise kernels
    layout_inputs   the inputs to which a device's wish for another layout applies (for Conv: the data, not the weights)
    gradient    the rule for reverse mode, or None where the op is not differentiable
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    infer: Infer
    reference: Reference
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    views: tuple[View, ...] = ()
    joins: tuple[Join, ...] = ()
    inplace: tuple[InplacePair, ...] = ()
    updates: Mapping[int, int] = field(default_factory=dict)
    random: bool = False
    workspace: Callable[[KernelQuery], int] = _no_workspace
    kernel: ChooseKernel = _no_kernel
    strided: tuple[int, ...] = ()
    items: ItemRule | None = None
    layouts: tuple[str, ...] = ()
    layout_inputs: tuple[int, ...] = (0,)
    gradient: GradientRule | None = None

    @property
    def min_inputs(self) -> int:
        """The fewest inputs that a node of this op has."""
        required = [i for i, slot in enumerate(self.inputs) if not slot.optional]
        return required[-1] + 1 if required else 0

    @property
    def max_inputs(self) -> int | None:
        """The most inputs that a node of this op has; None if there is no limit."""
        return None if self.inputs and self.inputs[-1].variadic else len(self.inputs)

    @property
    def min_outputs(self) -> int:
        required = [i for i, slot in enumerate(self.outputs) if not slot.optional]
        return required[-1] + 1 if required else 0

    @property
    def max_outputs(self) -> int | None:
        return None if self.outputs and self.outputs[-1].variadic else len(self.outputs)

    def input_slot(self, index: int) -> Input:
        """The slot of input number `index`, the variadic last slot included."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def reads_data(self, index: int) -> bool:
        """Whether input number `index` is read for its bytes, not only for its shape."""
        return self.input_slot(index).reads == "data"

    def kernel_for(self, query: KernelQuery) -> KernelCall | None:
        """The kernel for `query`, strides included; None where it runs as a host call (NumPy reads any strides)."""
        for index, strides in enumerate(query.strides):
            if strides is not None and index not in self.strided and -1 not in self.strided:
                return None
        return self.kernel(query)

    def view_of(self, output: int) -> View | None:
        """The view entry of output number `output`, if it is a view."""
        for view in self.views:
            if view.output in (output, -1):
                return view
        return None

    def join_of(self, output: int) -> Join | None:
        """The join entry of output number `output`, if it has one."""
        return next((join for join in self.joins if join.output == output), None)

    def complete_attrs(self, attrs: Attrs) -> dict[str, AttrValue]:
        """`attrs` with defaults filled in, sorted by name; raises `TypeInferenceError` on unknown, missing or
        ill-typed ones.
        """
        for name in attrs:
            if name not in self.attrs:
                known = ", ".join(sorted(self.attrs)) or "none"
                raise TypeInferenceError(f"{self.name} has no attribute {name!r}; it has: {known}")
        full: dict[str, AttrValue] = {}
        for name in sorted(self.attrs):
            attr = self.attrs[name]
            value = attrs.get(name, attr.default)
            if value is None:
                if attr.required:
                    raise TypeInferenceError(f"{self.name} needs the attribute {name!r} ({attr.kind})")
                continue
            full[name] = _coerce(self.name, name, attr.kind, value)
        return full


def _all(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


#: kind -> (whether a plain value is of that kind, how to make it so)
_KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], AttrValue]]] = {
    "bool": (lambda value: value in (True, False), bool),
    "int": (lambda value: isinstance(value, (int, float)) and int(value) == value, int),
    "float": (lambda value: isinstance(value, (int, float)), float),
    "str": (lambda value: isinstance(value, str), str),
    "ints": (_all(int), lambda value: tuple(int(item) for item in value)),
    "floats": (_all((int, float)), lambda value: tuple(float(item) for item in value)),
    "strs": (_all(str), tuple),
}


def _coerce(op: str, name: str, kind: str, value: Any) -> AttrValue:
    """`value` as the attribute's kind, or `TypeInferenceError`."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
    fits, make = _KINDS[kind]
    try:
        if fits(value):
            return make(value)
    except (ValueError, OverflowError):  # int() of a NaN or an infinity
        pass
    raise TypeInferenceError(f"{op}: attribute {name} = {value!r} is not of kind {kind}")
