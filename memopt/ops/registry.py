"""The one table of ops: name -> `OpSpec`. Families register themselves when they are imported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from memopt.errors import OptionError, UnsupportedOpError
from memopt.ops.spec import OpSpec

__all__ = ["all_ops", "get_op", "has_op", "register"]

_OPS: dict[str, OpSpec] = {}


def register(*specs: OpSpec) -> None:
    """Add ops to the table. A name may be registered once; a second, different entry is an error."""
    for spec in specs:
        if _OPS.get(spec.name, spec) is not spec:
            raise OptionError(f"op {spec.name!r} is registered already")
        _OPS[spec.name] = spec


def has_op(name: str) -> bool:
    """Whether there is an op of that name."""
    return name in _OPS


def get_op(name: str) -> OpSpec:
    """The op of that name; raises `UnsupportedOpError`, with the nearest names, if there is none."""
    spec = _OPS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, _OPS, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnsupportedOpError(f"there is no op {name!r}{hint}")
    return spec


def all_ops() -> Iterable[OpSpec]:
    """Every op, in the order of its name."""
    return [_OPS[name] for name in sorted(_OPS)]
