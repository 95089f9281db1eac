"""`Net`: a graph builder with the layers that the built-in models share, seeded weights, and a loss for training.

Holds true: the same arguments give the same weights, bit for bit; weights are scaled (He) and running statistics chosen
such that activations stay near unit size at every depth, and no layer is so near to the identity that losing its result
would go unseen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.ir import Graph, GraphBuilder, Value

__all__ = ["ModelOptions", "Net"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What a built-in model may be asked for. What is None is the model's own.

    batch     examples a run          image   height and width of the input image, in pixels
    sequence  tokens or time steps    seed    of the weights
    classes   number of outputs of a classifier           layers  depth of a model that is a stack of equal blocks
    loss      "cross-entropy" or "mse" for the training form of the forward graph; None for inference
    """

    batch: int = 1
    image: int | None = None
    sequence: int | None = None
    seed: int = 0
    classes: int | None = None
    layers: int | None = None
    loss: str | None = None


class Net(GraphBuilder):
    """A builder whose layers make their own parameters, named after the layer."""

    def __init__(self, name: str, options: ModelOptions) -> None:
        super().__init__(name)
        self.options = options
        self._random = np.random.Generator(np.random.SFC64(options.seed))

    def finish(self, scores: Value, *others: Value) -> Graph:
        """Fetch the outputs (in training: the loss of `scores` alone) and return the verified graph."""
        if self.options.loss is None:
            self.output(scores, *others)
        else:
            self.output(self._loss(scores))
        return self.build()

    def _loss(self, scores: Value) -> Value:
        """The mean loss against the feed `labels` (classes, along axis 1; for sequences the last axis) or `target`."""
        result: Value
        if self.options.loss == "mse":
            return cast(Value, self.op("MSELoss", scores, self.input("target", scores.shape), name="loss"))
        if len(scores.shape) == 3:  # (batch, sequence, classes)
            batch, length, classes = scores.shape
            labels = self.input("labels", (batch, length), "int64")
            scores = self.op("Reshape", scores, name="scores", shape=(batch * length, classes))
            labels = self.op("Reshape", labels, name="flat_labels", shape=(batch * length,))
        else:
            labels = self.input("labels", (scores.shape[0], *scores.shape[2:]), "int64")
        names = ["loss", "log_prob"]  # the gradient reads the second
        result, _ = self.op("SoftmaxCrossEntropyLoss", scores, labels, name="loss", outputs=names)
        return result

    # -- weights ------------------------------------------------------------------------------------------------

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int, gain: float = 2.0) -> Value:
        """A normal parameter of variance `gain / fan_in`."""
        data = self._random.standard_normal(shape, np.float32)
        data *= np.float32(math.sqrt(gain / fan_in))
        return self.param(name, data)

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Value:
        """A parameter drawn evenly from [low, high)."""
        return self.param(name, self._uniform(shape, low, high))

    def _uniform(self, shape: tuple[int, ...], low: float, high: float) -> NDArray[Any]:
        data = self._random.random(shape, np.float32)
        data *= np.float32(high - low)
        data += np.float32(low)
        return data

    # -- layers -------------------------------------------------------------------------------------------------

    def conv_layer(
        self,
        x: Value,
        name: str,
        channels: int,
        window: tuple[int, int] = (1, 1),
        *,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        """A convolution with a `window` of (size, stride) that keeps the size but for the stride."""
        (kernel, stride), per_group = window, x.shape[1] // groups
        inputs = [x, self.weight(f"{name}.weight", (channels, per_group, kernel, kernel), per_group * kernel * kernel)]
        if bias:
            inputs.append(self.uniform(f"{name}.bias", (channels,), -0.1, 0.1))
        attrs: dict[str, Any] = {
            "kernel_shape": (kernel,) * 2,
            "strides": (stride,) * 2,
            "pads": (kernel // 2,) * 4,
            "group": groups,
        }
        result: Value = self.op("Conv", *inputs, name=name, **attrs)
        return result

    def batch_norm(self, x: Value, name: str, gain: float = 1.0) -> Value:
        """Batch normalization with learnt-looking statistics; the output's deviation is about `gain`.

        In training it normalises with the batch's statistics, updates the running ones, and saves the batch's for its
        gradient.
        """
        channels = (x.shape[1],)
        inputs = (
            x,
            self.uniform(f"{name}.scale", channels, 0.7 * gain, 1.3 * gain),
            self.uniform(f"{name}.bias", channels, -0.3, 0.3),
            self.uniform(f"{name}.mean", channels, -0.5, 0.5),
            self.uniform(f"{name}.var", channels, 0.6, 1.6),
        )
        if self.options.loss is None:
            return cast(Value, self.op("BatchNormalization", *inputs, name=name))
        names = [name, *(f"{name}.{kind}" for kind in ("mean.new", "var.new", "batch_mean", "batch_var"))]
        return cast(Value, self.op("BatchNormalization", *inputs, name=name, outputs=names, training_mode=1)[0])

    def linear(self, x: Value, name: str, features: int, gain: float = 2.0) -> Value:
        """`x @ weight + bias` over the last axis, for x of any rank (`Gemm` for matrices)."""
        weight = self.weight(f"{name}.weight", (x.shape[-1], features), x.shape[-1], gain)
        bias = self.uniform(f"{name}.bias", (features,), -0.1, 0.1)
        result: Value
        if len(x.shape) == 2:
            result = self.op("Gemm", x, weight, bias, name=name)
        else:
            result = self.op("Add", self.op("MatMul", x, weight, name=f"{name}.matmul"), bias, name=name)
        return result

    def max_pool(self, x: Value, name: str, kernel: int, stride: int, pad: int = 0) -> Value:
        """Max pooling with a square window."""
        attrs: dict[str, Any] = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}
        result: Value = self.op("MaxPool", x, name=name, **attrs)
        return result

    def classifier(self, x: Value, classes: int) -> Value:
        """Global average pooling and one linear layer: the logits."""
        pooled = self.op("GlobalAveragePool", x, name="pool")
        return self.linear(self.op("Flatten", pooled, name="flatten"), "logits", classes, 1.0)
