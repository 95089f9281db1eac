"""Constants while loading: initialisers, Constant nodes, and what follows from them and from static shapes.

Holds true: a constant knows its type, and makes its data only when somebody asks for it (once). So a weight that
nobody reads, or that random data will replace, costs nothing. A folded result owns its bytes.

A node is folded if all its inputs are constants, it draws no random numbers, it is no matrix product or convolution,
and its result has at most 512 MiB, 2 GiB for all of a model; what is over stays a node, and is computed when the
graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import LoadError, MemoptError
from memopt.frontends.problems import RefusedError, shown
from memopt.ops import Attrs, OpSpec
from memopt.types import TensorType

__all__ = ["FOLD_ONLY", "Constant", "Folder", "fold_only"]

Array = NDArray[Any]

_LIMIT = 512 << 20
_TOTAL_LIMIT = 2 << 30
#: Ops that cost more than they move: never computed while loading.
_HEAVY = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
#: What a reference may raise when data that a file chose does not fit it.
_DATA_ERRORS = (MemoptError, ValueError, IndexError, TypeError, ArithmeticError, MemoryError)
#: Results up to this size are made at once, and so is what stands on a long chain of results that were not.
_EAGER, _MOST_DEPTH = 1 << 16, 50
#: Elements that an op which exists only at load time may make.
_MOST_ELEMENTS = 1 << 20


class Constant:
    """A value whose data is known, or can be made."""

    __slots__ = ("_data", "_make", "depth", "type")

    def __init__(self, type: TensorType, make: Callable[[], Array], depth: int = 0) -> None:
        self.type = type
        self.depth = depth
        self._make: Callable[[], Array] | None = make
        self._data: Array | None = None

    @staticmethod
    def of(data: Array) -> Constant:
        """The constant that holds `data`."""
        return Constant(TensorType.of(data.shape, data.dtype), lambda: data)

    @property
    def data(self) -> Array:
        """The data; raises `LoadError` if it cannot be made."""
        if self._data is None:
            assert self._make is not None
            self._data, self._make, self.depth = self._make(), None, 0
        data: Array = self._data
        return data


class Folder:
    """Decides what is folded, and keeps the account of its bytes."""

    def __init__(self) -> None:
        self._left = _TOTAL_LIMIT

    def accepts(self, spec: OpSpec, results: Sequence[TensorType]) -> bool:
        """Whether a node of `spec` with constant inputs is to be folded; then its bytes are booked."""
        nbytes = sum(result.nbytes for result in results)
        if spec.random or spec.updates or spec.name in _HEAVY or nbytes > min(_LIMIT, self._left):
            return False
        self._left -= nbytes
        return True

    def fold(
        self, spec: OpSpec, inputs: Sequence[Constant | None], attrs: Attrs, results: Sequence[TensorType], where: str
    ) -> list[Constant]:
        """The results of `spec` on constants, computed together when the first is asked for."""
        if spec.name == "ConstantOfShape":
            value = spec.reference([], {**attrs, "shape": ()}, [results[0].with_shape(())])[0]
            return [Constant(results[0], lambda: np.broadcast_to(value, results[0].shape))]
        made: list[Array] = []

        def compute(index: int) -> Array:
            if not made:
                arrays = [None if constant is None else constant.data for constant in inputs]
                made.extend(_evaluate(lambda: spec.reference(arrays, attrs, results), where))
            return made[index]

        depth = 1 + max((constant.depth for constant in inputs if constant is not None), default=0)
        constants = [Constant(result, partial(compute, index), depth) for index, result in enumerate(results)]
        for constant in constants:
            if constant.type.nbytes <= _EAGER or depth >= _MOST_DEPTH:
                _ = constant.data
        return constants


def _evaluate(compute: Callable[[], Sequence[Array]], where: str) -> Sequence[Array]:
    try:
        with np.errstate(all="ignore"):
            return compute()
    except _DATA_ERRORS as error:
        raise LoadError(f"{where} works on constants and cannot be computed: {shown(error, 200)}") from None


# -- ops that exist only while loading: the shape arithmetic of exporters ---------------------------------------


def _range(inputs: Sequence[Array], attrs: dict[str, Any]) -> Array:
    start, limit, delta = (array.reshape(-1)[0] for array in inputs)
    if delta == 0:
        raise RefusedError("its step is 0")
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    if count > _MOST_ELEMENTS:
        raise RefusedError(f"it counts {count} numbers; at most {_MOST_ELEMENTS} are made while loading")
    return np.asarray(start + np.arange(count).astype(start.dtype) * delta, start.dtype)


def _mod(inputs: Sequence[Array], attrs: dict[str, Any]) -> Array:
    a, b = inputs
    return np.asarray(np.fmod(a, b) if attrs.get("fmod", 0) else np.mod(a, b))


def _non_zero(inputs: Sequence[Array], attrs: dict[str, Any]) -> Array:
    return np.array(np.nonzero(np.atleast_1d(inputs[0])), np.int64)


FOLD_ONLY: dict[str, Callable[[Sequence[Array], dict[str, Any]], Array]] = {
    "Mod": _mod,
    "NonZero": _non_zero,
    "Range": _range,
}


def fold_only(op: str, inputs: Sequence[Constant], attrs: dict[str, Any], where: str) -> Constant:
    """The result of an op that memopt has only for constants; raises `RefusedError` or `LoadError`."""
    if any(constant.type.num_elements > _MOST_ELEMENTS for constant in inputs):
        raise RefusedError("memopt computes this op only while loading, on small constants")
    arrays = [constant.data for constant in inputs]
    result = _evaluate(lambda: [np.asarray(FOLD_ONLY[op](arrays, attrs))], where)[0]
    if result.size > _MOST_ELEMENTS:
        raise RefusedError("memopt computes this op only while loading, on small constants")
    return Constant.of(result)
