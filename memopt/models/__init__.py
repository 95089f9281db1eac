"""Built-in models: real network structures with seeded random weights, for inference and for training.

The weights are random but well scaled, so that what a network computes is meaningless and yet any lost tensor shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memopt.errors import OptionError
from memopt.ir import Graph
from memopt.models.densenet import densenet121
from memopt.models.feeds import fill_params, random_feeds
from memopt.models.gpt import gpt
from memopt.models.lenet import lenet
from memopt.models.lstm import lstm
from memopt.models.mlp import mlp
from memopt.models.mobilenet import mobilenetv2
from memopt.models.net import ModelOptions
from memopt.models.resnet import resnet18, resnet50
from memopt.models.unet import unet
from memopt.training import SGD, Adam, AdamW, Momentum, Optimizer, training_step

__all__ = [
    "DEFAULT_MODEL",
    "LOSSES",
    "OPTIMIZERS",
    "ModelInfo",
    "ModelOptions",
    "build",
    "fill_params",
    "has_model",
    "list_models",
    "random_feeds",
]

#: What the commands take where no model is named.
DEFAULT_MODEL = "resnet50"
LOSSES = ("cross-entropy", "mse")
#: name -> the optimizer with its default rate.
OPTIMIZERS: Mapping[str, Optimizer] = {
    "momentum": Momentum(),
    "sgd": SGD(),
    "adam": Adam(),
    "adamw": AdamW(),
}
#: Models of any depth.
_STACKS = ("gpt", "mlp")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A built-in model: its name, one line of description, and the function that makes it."""

    name: str
    description: str
    make: Callable[[ModelOptions], Graph]


_MODELS = {
    make.__name__: ModelInfo(make.__name__, (make.__doc__ or "").strip(), make)
    for make in (mlp, lenet, resnet18, resnet50, mobilenetv2, unet, densenet121, gpt, lstm)
}


def list_models() -> tuple[ModelInfo, ...]:
    """The built-in models, smallest families first."""
    return tuple(_MODELS.values())


def has_model(name: str) -> bool:
    """Whether there is a built-in model of that name."""
    return name in _MODELS


def build(  # noqa: PLR0913 - what a model may be asked for, by keyword
    name: str,
    *,
    batch: int = 1,
    image: int | None = None,
    sequence: int | None = None,
    layers: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    train: bool = False,
    loss: str = "cross-entropy",
    optimizer: str | Optimizer | None = "momentum",
    stats_device: str | None = None,
) -> Graph:
    """The built-in model `name` as a verified graph, for inference or (`train`) as one step of training.

    image, sequence, layers, classes   pixels, tokens or time steps, blocks, outputs; the model's own where None
    train         the graph computes the mean loss against the feed `labels` (or `target`), its gradients, and updates
                  parameters, optimizer state and running statistics in place; its one output is the loss
    loss          one of `LOSSES`        optimizer   one of `OPTIMIZERS`, or an optimizer; None: the loss alone
    stats_device  where the running statistics live (None: on the machine's default device)

    Raises `OptionError` for an unknown name or a size that the model cannot take.
    """
    if name not in _MODELS:
        raise OptionError(f"there is no built-in model {name!r}; there are {', '.join(_MODELS)}")
    sizes = {"batch": batch, "image": image, "sequence": sequence, "layers": layers, "classes": classes}
    for option, value in sizes.items():
        if value is not None and value < 1:
            raise OptionError(f"{option}={value} of model {name} is not a positive number")
    if layers is not None and name not in _STACKS:
        raise OptionError(f"layers={layers}: the depth of {name} is fixed; of any depth: {', '.join(_STACKS)}")
    if loss not in LOSSES:
        raise OptionError(f"loss {loss!r} is not one of {', '.join(LOSSES)}")
    graph = _MODELS[name].make(ModelOptions(batch, image, sequence, seed, classes, layers, loss if train else None))
    if train:
        _place_statistics(graph, stats_device)
        return graph if optimizer is None else _step(graph, optimizer)
    return graph


def _place_statistics(graph: Graph, device: str | None) -> None:
    """Let the parameters that the forward graph updates live on `device`."""
    for node in graph.nodes:
        for output, source in node.spec.updates.items():
            value = node.inputs[source]
            if device is not None and value is not None and len(node.outputs) > output:
                graph.param_devices[value.name] = device


def _step(graph: Graph, optimizer: str | Optimizer) -> Graph:
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise OptionError(f"optimizer {optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
        optimizer = OPTIMIZERS[optimizer]
    freeze = [value for value in graph.params if value.name == "causal_mask"]
    return training_step(graph, graph.outputs[0], optimizer, freeze=freeze)
