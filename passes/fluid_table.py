"""What PaddlePaddle Fluid 1.5 and 1.6 know of ops: which forward op may write its first output over which input.

Data only, for `fluid_rules=True`. Fluid's ops are given by the ONNX names that do the same; an op that is absent is
never in place. Only the *first* argument of a slot counts, so every pair here is (input 0, output 0).
"""

from __future__ import annotations

__all__ = ["FLUID_15", "FLUID_16", "MIN_CHUNK_ELEMENTS", "SIZE_EXEMPT"]

#: The fewest elements of a tensor that 1.5 renames: 4096 in its CPU build, 256 in its CUDA build. 1.6 has no floor.
MIN_CHUNK_ELEMENTS = 4096

#: Ops that 1.5 exempts from its test of equal bytes.
SIZE_EXEMPT = frozenset({"Reshape"})

_ACTIVATIONS = (
    "Ceil",
    "Exp",
    "Floor",
    "HardSigmoid",
    "LeakyRelu",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sqrt",
    "Tanh",
)

#: elementwise_add and _sub write over X only, never over Y; elementwise_mul and _div are not in place.
FLUID_15: frozenset[str] = frozenset({*_ACTIVATIONS, "Add", "Sub", "Sum", "Reshape", "Flatten", "GroupNormalization"})
FLUID_16: frozenset[str] = FLUID_15 | {"Squeeze", "Unsqueeze", "Identity", "Clip", "Softmax"}
