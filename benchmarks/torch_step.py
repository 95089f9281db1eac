"""The training step of a built-in model in PyTorch: an oracle for gradients and optimizers, and a rival for memory.

The forward graph is interpreted with PyTorch's own ops, node by node; the gradients are PyTorch's autograd's and the
updates those of `torch.optim`. Nothing of memopt computes here but the shapes of the graph. An activation is dropped
after its last reader, and Relu is done in place where it is the only reader, as the published models do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import memopt
from memopt.training import SGD, Adam, AdamW, Momentum, Optimizer, trainable_params

__all__ = ["TorchStep"]

Tensor = torch.Tensor
Attrs = Mapping[str, Any]


def _pads(attrs: Attrs) -> tuple[int, ...]:
    """The padding of each spatial axis, which is the same at both ends in these models."""
    pads = attrs.get("pads") or (0,) * (2 * len(attrs["kernel_shape"]))
    half = len(pads) // 2
    assert pads[:half] == pads[half:], pads
    return tuple(pads[:half])


def _conv(attrs: Attrs, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.conv2d(x, weight, bias, attrs["strides"], _pads(attrs), groups=attrs["group"])


def _max_pool(attrs: Attrs, x: Tensor) -> Tensor:
    return functional.max_pool2d(x, attrs["kernel_shape"], attrs["strides"], _pads(attrs))


def _average_pool(attrs: Attrs, x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, attrs["kernel_shape"], attrs["strides"], _pads(attrs))


def _batch_norm(attrs: Attrs, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """As PyTorch's, but for the running variance, which ONNX takes of the batch without Bessel's correction."""
    keep, axes = attrs["momentum"], (0, *range(2, x.dim()))
    with torch.no_grad():
        mean.mul_(keep).add_(x.mean(axes), alpha=1 - keep)
        var.mul_(keep).add_(x.var(axes, unbiased=False), alpha=1 - keep)
    return functional.batch_norm(x, None, None, scale, bias, training=True, eps=attrs["epsilon"])


def _gemm(attrs: Attrs, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (a.T if attrs["transA"] else a), (b.T if attrs["transB"] else b)
    product = a @ b
    return product if c is None else product + c


def _slice(attrs: Attrs, x: Tensor) -> Tensor:
    for axis, start, end in zip(attrs["axes"], attrs["starts"], attrs["ends"], strict=True):
        x = x.narrow(axis, start, end - start)
    return x


_OPS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda attrs, a, b: a + b,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda attrs, *parts: torch.cat(parts, attrs["axis"]),
    "Conv": _conv,
    "DepthToSpace": lambda attrs, x: functional.pixel_shuffle(x, attrs["blocksize"]),
    "Flatten": lambda attrs, x: x.flatten(1),
    "Gather": lambda attrs, table, index: functional.embedding(index, table),
    "Gelu": lambda attrs, x: functional.gelu(x),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda attrs, x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "LayerNormalization": lambda attrs, x, scale, bias: functional.layer_norm(
        x, x.shape[-1:], scale, bias, attrs["epsilon"]
    ),
    "MSELoss": lambda attrs, a, b: functional.mse_loss(a, b),
    "MatMul": lambda attrs, a, b: a @ b,
    "MaxPool": _max_pool,
    "Mul": lambda attrs, a, b: a * b,
    "Relu": lambda attrs, x: functional.relu(x),
    "Reshape": lambda attrs, x: x.reshape(attrs["shape"]),
    "Sigmoid": lambda attrs, x: x.sigmoid(),
    "Slice": _slice,
    "Softmax": lambda attrs, x: x.softmax(attrs["axis"]),
    "SoftmaxCrossEntropyLoss": lambda attrs, scores, labels: functional.cross_entropy(scores, labels),
    "Squeeze": lambda attrs, x: x.squeeze(attrs["axes"]),
    "Tanh": lambda attrs, x: x.tanh(),
    "Transpose": lambda attrs, x: x.permute(attrs["perm"]),
}


class TorchStep:
    """Parameters and optimizer of one model in PyTorch. `forward` is the graph with the loss as its one output."""

    def __init__(self, forward: memopt.Graph, optimizer: Optimizer, feeds: Mapping[str, np.ndarray]) -> None:
        self.graph = forward
        frozen = {"causal_mask"}
        trained = [value.name for value in trainable_params(forward, forward.outputs[0]) if value.name not in frozen]
        self.params = {value.name: torch.tensor(forward.param_data(value)) for value in forward.params}
        for name in trained:
            self.params[name].requires_grad_()
        self.feeds = {name: torch.tensor(array) for name, array in feeds.items()}
        self.optimizer = _optimizer([self.params[name] for name in trained], optimizer)
        self._last = {value: node for node in forward.nodes for value in node.inputs}

    def run(self) -> float:
        """One step; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def state(self) -> dict[str, np.ndarray]:
        """parameter name -> its value now."""
        return {name: tensor.detach().numpy() for name, tensor in self.params.items()}

    def live_peak_bytes(self) -> int:
        """The most bytes that PyTorch's allocator holds at once in a step, beyond parameters and optimizer state."""
        from torch.profiler import ProfilerActivity, profile

        self.run()  # the optimizer makes its state
        self.optimizer.zero_grad(set_to_none=True)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self.run()
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        live = peak = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return peak

    def _loss(self) -> Tensor:
        env: dict[str, Any] = {**self.params, **self.feeds}
        for node in self.graph.nodes:
            inputs = [None if value is None else env[value.name] for value in node.inputs]
            if node.op == "Relu" and len(node.inputs[0].uses) == 1:
                results: Any = functional.relu_(inputs[0])
            elif node.op == "Split":
                results = inputs[0].chunk(len(node.outputs), node.attrs["axis"])
            else:
                results = _OPS[node.op](node.attrs, *inputs)
            del inputs
            for value in node.inputs:
                if value is not None and value.producer is not None and self._last[value] is node:
                    env.pop(value.name, None)
            values = [value for value in node.outputs if value is not None]
            made = results if node.op == "Split" else [results]
            env.update(zip((value.name for value in values), made, strict=False))
            del results, made
        return env[self.graph.outputs[0].name]


def _optimizer(params: list[Tensor], optimizer: Optimizer) -> torch.optim.Optimizer:
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(params, optimizer.lr)
    if isinstance(optimizer, Momentum):
        options = {"weight_decay": optimizer.weight_decay, "nesterov": optimizer.nesterov}
        return torch.optim.SGD(params, optimizer.lr, momentum=optimizer.mu, **options)
    betas = (optimizer.beta1, optimizer.beta2)
    kind = torch.optim.AdamW if isinstance(optimizer, AdamW) else torch.optim.Adam
    assert isinstance(optimizer, Adam | AdamW)
    return kind(params, optimizer.lr, betas, optimizer.epsilon, optimizer.weight_decay)
