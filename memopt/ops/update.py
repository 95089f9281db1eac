"""Ops: update."""

from __future__ import annotations

from memopt.ops.spec import OpSpec

__all__ = ["OPS"]

OPS: tuple[OpSpec, ...] = ()
