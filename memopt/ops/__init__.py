"""The ops: one file a family, one `OpSpec` an op. Importing this package registers them all."""

from memopt.ops import blas, conv, elementwise, elementwise_fused, movement, nn, pool, reduction, resize, update
from memopt.ops.elementwise_fused import FUSED, MAX_STEPS, Chain, chain_of, join_chains
from memopt.ops.items import Calls, choose_calls, scratch_bytes
from memopt.ops.padding import Padding, is_at_least_zero, own_crop, own_pads
from memopt.ops.registry import all_ops, get_op, has_op, register
from memopt.ops.spec import (
    ANY_LAYOUT,
    DEFAULT_LAYOUT,
    ArrayArg,
    Attr,
    Attrs,
    AttrValue,
    GradientRule,
    InplacePair,
    Input,
    Join,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Routine,
    View,
    scratch_limit,
)

__all__ = [
    "ANY_LAYOUT",
    "DEFAULT_LAYOUT",
    "FUSED",
    "MAX_STEPS",
    "ArrayArg",
    "Attr",
    "AttrValue",
    "Attrs",
    "Calls",
    "Chain",
    "GradientRule",
    "InplacePair",
    "Input",
    "Join",
    "KernelCall",
    "KernelQuery",
    "OpSpec",
    "Output",
    "Padding",
    "Routine",
    "View",
    "all_ops",
    "chain_of",
    "choose_calls",
    "get_op",
    "has_op",
    "is_at_least_zero",
    "join_chains",
    "own_crop",
    "own_pads",
    "register",
    "scratch_bytes",
    "scratch_limit",
]

register(*elementwise.OPS, *movement.OPS, *reduction.OPS, *blas.OPS, *conv.OPS, *pool.OPS, *nn.OPS, *resize.OPS)
register(*update.OPS, *elementwise_fused.OPS)
