"""`check_saved`: would the backward of a loss read what an in-place method has overwritten?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memopt.autodiff.reverse import grad
from memopt.ir import Graph, Tensor, Value, as_value

__all__ = ["check_saved"]


def check_saved(
    graph: Graph,
    loss: Value | Tensor | str,
    wrt: Sequence[Value | Tensor | str] | None = None,
    *,
    stop_gradient: Iterable[Value | Tensor | str] = (),
) -> None:
    """Raise `GradientError` if the backward of `loss`, taken now, would read bytes that an in-place method overwrites.

    `wrt` (default: the parameters of float dtypes, or where there are none the feeds) and `stop_gradient` are those of
    `memopt.grad`. The graph is not changed. A graph of `GraphBuilder(strict=True)` is checked by `memopt.grad` itself.
    """
    twin = graph.copy()
    twin.inplace.strict = True
    if wrt is None:
        leaves = [v for v in graph.params if v.dtype.startswith("float") and v.name not in graph.inplace.stopped]
        wrt = leaves or [v for v in graph.inputs if v.dtype.startswith("float")]
    names = [_name(value) for value in wrt]
    grad(twin, _name(loss), names, stop_gradient=[_name(value) for value in stop_gradient])


def _name(value: Value | Tensor | str) -> str:
    plain = as_value(value)
    return plain if isinstance(plain, str) else str(plain.name)
