"""Run an op's kernel in every way that it promises: out of place, in place, and as plain Python."""

from __future__ import annotations

import importlib
from itertools import product

import numpy as np

from memopt.ops import KernelQuery, get_op
from memopt.runtime.entry import run_kernel
from memopt.types import TensorType

TO_NHWC = (0, 2, 3, 1)


def types_of(arrays):
    return tuple(TensorType.of(a.shape, a.dtype) for a in arrays)


def call_of(op, inputs, layout="NCHW", **attrs):
    """(kernel call, reference results, output types, attrs) of one node."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    outputs = tuple(spec.infer(types_of(inputs), full, max(spec.min_outputs, 1)))
    call = spec.kernel(KernelQuery(types_of(inputs), outputs, full, layout))
    return call, spec.reference(inputs, full, outputs), outputs, full


def plain_kernel(call):
    """The kernel as plain Python."""
    family, name = call.kernel.split(".")
    module = importlib.import_module(f"memopt.kernels.{family}")
    if not call.expression:
        return getattr(module, name)
    scope = {}
    exec(module.generate(name, call), scope)
    return scope["kernel"]


def execute(call, inputs, outputs, plain=False):
    """Run `call`; the status must be 0."""
    operands = {"in": inputs, "out": outputs}
    arrays = [operands[a.role][a.index].reshape(-1).view(a.dtype).reshape(a.shape) for a in call.arrays]
    if plain:
        with np.errstate(all="ignore"):
            assert plain_kernel(call)(*arrays, *call.scalars) == 0
    else:
        assert run_kernel(call, arrays) == 0


def fresh(outputs):
    return [np.full(t.shape, 77).astype(t.dtype) for t in outputs]


def assert_close(got, want, rtol=None, what=""):
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        rtol = rtol if rtol is not None else 4e-6 if got.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol / 2, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


def inplace_choices(spec, inputs, outputs, full):
    """For each output the inputs over which it may lie, and None."""
    choices = [[None] for _ in outputs]
    for pair in spec.inplace:
        present = pair.input < len(inputs) and pair.output < len(outputs)
        if present and (pair.condition is None or pair.condition(types_of(inputs), outputs, full) is None):
            choices[pair.output].append(pair.input)
    return choices


def check_kernel(op, inputs, rtol=None, plain=True, **attrs):
    """Kernel against reference; in every in-place way bit-equal to out of place; plain Python like compiled.

    Returns the results.
    """
    call, wanted, outputs, full = call_of(op, inputs, **attrs)
    assert call is not None, f"{op} has no kernel for {types_of(inputs)}"
    results = fresh(outputs)
    execute(call, inputs, results)
    for got, want in zip(results, wanted, strict=True):
        assert_close(got, want, rtol, op)
    for sources in product(*inplace_choices(get_op(op), inputs, outputs, full)):
        copies = [a.copy() for a in inputs]
        places = fresh(outputs)
        for i, source in enumerate(sources):
            if source is not None:
                places[i] = copies[source].reshape(-1).view(outputs[i].dtype).reshape(outputs[i].shape)
        execute(call, copies, places)
        for got, want in zip(places, results, strict=True):
            np.testing.assert_array_equal(
                got.view(np.uint8) if got.ndim else got, want.view(np.uint8) if want.ndim else want
            )
    if plain:
        slow = fresh(outputs)
        execute(call, inputs, slow, plain=True)
        for got, want in zip(slow, results, strict=True):
            assert_close(got, want, rtol, f"{op} in plain Python")
    return results
