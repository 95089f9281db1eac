"""Built-in models: real network structures with seeded random weights, for trying things out without a file.

The weights are random but well scaled, so that what a network computes is meaningless and yet any lost tensor shows.
"""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = [
    "DEFAULT_MODEL",
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


def build(
    name: str,
    *,
    batch: int = 1,
    image: int | None = None,
    sequence: int | None = None,
    seed: int = 0,
    classes: int | None = None,
) -> Graph:
    """The built-in model `name` as a verified graph.

    `image` (pixels), `sequence` (tokens, time steps) and `classes` are the model's own where None. Raises `OptionError`
    for an unknown name or a size that the model cannot take.
    """
    if name not in _MODELS:
        raise OptionError(f"there is no built-in model {name!r}; there are {', '.join(_MODELS)}")
    for option, value in (("batch", batch), ("image", image), ("sequence", sequence), ("classes", classes)):
        if value is not None and value < 1:
            raise OptionError(f"{option}={value} of model {name} is not a positive number")
    return _MODELS[name].make(ModelOptions(batch, image, sequence, seed, classes))
