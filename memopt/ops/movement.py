"""Ops: movement. Views, strided copies, joins and cuts, data made from attributes: see the `movement_*` files."""

from __future__ import annotations

from dataclasses import replace

from memopt.ops import movement_assign, movement_copy, movement_fill, movement_grad, movement_join, movement_views
from memopt.ops.movement_rules import GRADIENTS
from memopt.ops.spec import OpSpec

__all__ = ["OPS"]

_FORWARD = (*movement_views.OPS, *movement_copy.OPS, *movement_join.OPS, *movement_fill.OPS)
OPS: tuple[OpSpec, ...] = (
    *(replace(spec, gradient=GRADIENTS.get(spec.name)) for spec in _FORWARD),
    *movement_grad.OPS,
    *movement_assign.OPS,
)
