"""Ops: movement. Views, strided copies, joins and cuts, data made from attributes: see the `movement_*` files."""

from __future__ import annotations

from memopt.ops import movement_copy, movement_fill, movement_join, movement_views
from memopt.ops.spec import OpSpec

__all__ = ["OPS"]

OPS: tuple[OpSpec, ...] = (*movement_views.OPS, *movement_copy.OPS, *movement_join.OPS, *movement_fill.OPS)
