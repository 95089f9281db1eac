"""`load`: find out what a source is, and hand it to the reader of its kind.

Holds true: this module imports no reader before one is needed, so that `import memopt` stays cheap.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memopt.errors import LoadError, OptionError
from memopt.frontends.problems import shown
from memopt.ir import Graph, parse

if TYPE_CHECKING:
    import onnx

__all__ = ["Dims", "Source", "load"]

Source = "str | os.PathLike[str] | bytes | onnx.ModelProto"
#: Symbolic dimension -> size, input -> shape, or "input.axis" -> size.
Dims = Mapping[str, "int | Sequence[int]"]

_TEXT_SUFFIXES = (".txt", ".memopt")
_WEIGHTS = ("file", "random")
_MODEL_SIZES = ("batch", "image", "sequence", "layers", "classes")


def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    dims: Dims | None = None,
    weights: str = "file",
    seed: int = 0,
) -> Graph:
    """The graph of an ONNX model, a text graph, or a built-in model.

    source    a path (`.txt` and `.memopt` hold text graphs, all else ONNX), the bytes of an ONNX file, an
              `onnx.ModelProto`, or the name of a built-in model (`memopt models` lists them); a file of that name is
              reached as `./name`
    dims      sizes of what the file leaves open: `{"batch": 1}` by symbolic name, `{"x": (1, 3, 224, 224)}` or
              `{"x.0": 1}` by input; for a built-in model its `batch`, `image`, `sequence` or `classes`
    weights   "file", or "random": replace weights by well-scaled random ones (see `memopt.frontends.random_weights`)
    seed      the seed of random weights

    Raises `LoadError` (`UnsupportedOpError`, `ParseError`) for a source that cannot be used, naming all that is wrong
    with it, and `OptionError` for a wrong option.
    """
    if weights not in _WEIGHTS:
        raise OptionError(f"weights={weights!r} is not one of {', '.join(_WEIGHTS)}")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise OptionError(f"seed={seed!r} is not an integer of 0 or more")
    if isinstance(source, (str, os.PathLike)):
        return _load_named(source, dims or {}, weights, seed)
    from memopt.frontends.onnx_load import load_onnx

    return load_onnx(source, dims or {}, weights, seed)


def _load_named(source: str | os.PathLike[str], dims: Dims, weights: str, seed: int) -> Graph:
    name = os.fspath(source)
    if isinstance(source, str) and _is_built_in(name):
        return _build(name, dims, seed)
    path = Path(name)
    try:
        found = path.exists()
    except (OSError, ValueError) as error:
        raise LoadError(f"{name!r} is not a path: {error}") from None
    if not found:
        raise LoadError(_not_found(name))
    if path.is_dir():
        raise LoadError(f"{name} is a folder; give the model file in it")
    if path.suffix.lower() in _TEXT_SUFFIXES:
        return _load_text(path, dims, weights, seed)
    from memopt.frontends.onnx_load import load_onnx

    return load_onnx(path, dims, weights, seed)


def _is_built_in(name: str) -> bool:
    if importlib.util.find_spec("memopt.models") is None:
        return False
    from memopt.models import has_model

    return bool(has_model(name))


def _build(name: str, dims: Dims, seed: int) -> Graph:
    from memopt.models import build

    for key, value in dims.items():
        if key not in _MODEL_SIZES or not isinstance(value, int):
            known = ", ".join(_MODEL_SIZES)
            raise OptionError(f"dims has {key}={value!r}, but the sizes of built-in model {name} are: {known}")
    sizes: dict[str, Any] = {key: value for key, value in dims.items() if isinstance(value, int)}
    graph: Graph = build(name, seed=seed, **sizes)
    return graph


def _not_found(name: str) -> str:
    message = f"there is no file {shown(name, 300)}"
    if os.sep in name or "." in name or importlib.util.find_spec("memopt.models") is None:
        return message
    from memopt.models import list_models

    known = [info.name for info in list_models()]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"{message}, and no built-in model of that name; {hint}"


def _load_text(path: Path, dims: Dims, weights: str, seed: int) -> Graph:
    if dims:
        raise OptionError(f"dims={dict(dims)!r}: the text graph {path} has sizes for all of its dimensions")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read {path}: {error}") from None
    graph = parse(text)
    if weights == "random":
        from memopt.frontends.random_weights import randomize

        randomize(graph, seed)
    return graph
