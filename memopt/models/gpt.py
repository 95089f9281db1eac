"""A small GPT-2-like transformer (Radford et al., 2019): pre-norm blocks, causal attention, output layer apart."""

from __future__ import annotations

import math

import numpy as np

from memopt.ir import Graph, Value
from memopt.models.net import ModelOptions, Net

__all__ = ["gpt"]

_WIDTH, _HEADS, _LAYERS, _VOCABULARY = 128, 4, 4, 1024


def gpt(options: ModelOptions) -> Graph:
    """Four layers (or any number), width 128, four heads; sequence 64."""
    net = Net("gpt", options)
    length = options.sequence or 64
    vocabulary = options.classes or _VOCABULARY
    tokens = net.input("tokens", (options.batch, length), "int64")
    x = net.op("Gather", net.weight("wte", (vocabulary, _WIDTH), 1, 1.0), tokens, name="embed", axis=0)
    x = net.op("Add", x, net.weight("wpe", (length, _WIDTH), 1, 0.1), name="position")
    mask = net.param("causal_mask", np.triu(np.full((length, length), -1e9, np.float32), 1))
    for layer in range(options.layers or _LAYERS):
        name = f"h{layer}"
        x = net.op(
            "Add", x, _attention(net, _layer_norm(net, x, f"{name}.ln1"), f"{name}.attn", mask), name=f"{name}.add1"
        )
        x = net.op("Add", x, _feed_forward(net, _layer_norm(net, x, f"{name}.ln2"), f"{name}.mlp"), name=f"{name}.add2")
    return net.finish(net.linear(_layer_norm(net, x, "ln_f"), "logits", vocabulary, 1.0))


def _layer_norm(net: Net, x: Value, name: str) -> Value:
    scale = net.uniform(f"{name}.scale", (x.shape[-1],), 0.7, 1.3)
    bias = net.uniform(f"{name}.bias", (x.shape[-1],), -0.2, 0.2)
    result: Value = net.op("LayerNormalization", x, scale, bias, name=name, axis=-1)
    return result


def _attention(net: Net, x: Value, name: str, mask: Value) -> Value:
    batch, length, width = x.shape
    joint = net.linear(x, f"{name}.qkv", 3 * width, 1.0)
    parts = net.op("Split", joint, outputs=[f"{name}.{part}" for part in "qkv"], name=f"{name}.split", axis=-1)
    query, key, value = (_heads(net, part, f"{name}.{part.name[-1]}") for part in parts)
    scores = net.op(
        "MatMul", query, net.op("Transpose", key, name=f"{name}.kT", perm=(0, 1, 3, 2)), name=f"{name}.scores"
    )
    scale = net.param(f"{name}.scale", np.float32(1 / math.sqrt(width // _HEADS)))
    scores = net.op("Add", net.op("Mul", scores, scale, name=f"{name}.scaled"), mask, name=f"{name}.masked")
    weights = net.op("Softmax", scores, name=f"{name}.softmax", axis=-1)
    mixed = net.op(
        "Transpose", net.op("MatMul", weights, value, name=f"{name}.mix"), name=f"{name}.merge", perm=(0, 2, 1, 3)
    )
    return net.linear(
        net.op("Reshape", mixed, name=f"{name}.join", shape=(batch, length, width)), f"{name}.out", width, 0.5
    )


def _heads(net: Net, x: Value, name: str) -> Value:
    """[batch, length, width] -> [batch, heads, length, width / heads]."""
    batch, length, width = x.shape
    x = net.op("Reshape", x, name=f"{name}.split_heads", shape=(batch, length, _HEADS, width // _HEADS))
    result: Value = net.op("Transpose", x, name=f"{name}.heads", perm=(0, 2, 1, 3))
    return result


def _feed_forward(net: Net, x: Value, name: str) -> Value:
    hidden = net.op("Gelu", net.linear(x, f"{name}.up", 4 * x.shape[-1]), name=f"{name}.gelu")
    return net.linear(hidden, f"{name}.down", x.shape[-1], 0.5)
