"""Options that several commands have, and what they turn into: a graph, a machine, arguments of `memopt.compile`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memopt.errors import LoadError, OptionError

if TYPE_CHECKING:
    from memopt.devices import Machine
    from memopt.ir import Graph

__all__ = [
    "HelpFormatter",
    "add_compile_options",
    "add_json_option",
    "add_machine_options",
    "add_model_options",
    "add_plot_option",
    "check_plot",
    "compile_options",
    "load_feeds",
    "load_model",
    "make_machine",
    "names_machine",
]

#: Options of training.
_TRAINING = ("optimizer", "loss", "stats_device")
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description; one with an indented line is kept as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        filled = (p if "\n " in p else super(HelpFormatter, self)._fill_text(p, width, indent) for p in paragraphs)
        return "\n\n".join(filled)


def add_model_options(parser: argparse.ArgumentParser, *, default: str | None = None, what: str = "") -> None:
    """MODEL and how it is loaded or built."""
    text = what or "an ONNX file, a text graph, or the name of a built-in model (memopt models lists them)"
    group = parser.add_argument_group("model")
    if default is None:
        group.add_argument("model", metavar="MODEL", help=text)
    else:
        group.add_argument("model", metavar="MODEL", nargs="?", default=default, help=f"{text}; default: {default}")
    group.add_argument("--batch", type=int, metavar="N", help="examples a run, of a built-in model (default: 1)")
    group.add_argument("--image", type=int, metavar="N", help="image size in pixels, of a built-in model")
    group.add_argument("--sequence", type=int, metavar="N", help="sequence length, of a built-in model")
    group.add_argument("--layers", type=int, metavar="N", help="depth, of the built-in models gpt and mlp")
    group.add_argument("--train", action="store_true", help="one training step of a built-in model, not inference")
    group.add_argument("--optimizer", metavar="NAME", help="momentum, sgd, adam, adamw (default: momentum)")
    group.add_argument("--loss", metavar="NAME", help="cross-entropy or mse (default: cross-entropy)")
    group.add_argument(
        "--stats-device", metavar="DEVICE", help="where running statistics live in training (default: default device)"
    )
    group.add_argument(
        "--dims",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="size of a named dimension of an ONNX file: batch=1",
    )
    group.add_argument(
        "--weights",
        choices=("file", "random"),
        default="file",
        help="take an ONNX file's weights, or replace them (default: file)",
    )
    group.add_argument("--seed", type=int, metavar="N", default=0, help="seed of random weights and feeds (default: 0)")


def add_machine_options(parser: argparse.ArgumentParser, default: str = "the host alone") -> None:
    """The devices. Every device is an address space on this machine."""
    group = parser.add_argument_group(
        "machine",
        f"Default: {default}. Devices are simulated: address spaces of their own on this machine. "
        "The first added one is the default device, on which nodes run and parameters live.",
    )
    group.add_argument("--device", metavar="NAME", action="append", default=[], help="add a device")
    group.add_argument("--host-only", action="store_true", help="the host alone")
    for option, example, text in (
        ("--lacks", "gpu:BatchNormalization,Softmax", "ops without a kernel there; they run on the host"),
        ("--dtype", "gpu:float64=float32", "a dtype that its kernels want instead of another"),
        ("--layout", "gpu:Conv=NHWC", "the layout that its kernel of an op wants"),
        ("--capacity", "gpu:100MiB", "the most bytes that it has"),
    ):
        group.add_argument(option, metavar="DEVICE:...", action="append", default=[], help=f"{text}: {example}")


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Strategy, transfer policy, frees."""
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--strategy",
        default="share",
        help="named pass list: none, rename, share, best, or one of your own package (default: share)",
    )
    group.add_argument(
        "--transfer",
        default="publish",
        choices=("fluid-1.5", "publish", "outer"),
        help="what happens to outputs whose variable was transferred as an input (default: publish)",
    )
    group.add_argument(
        "--free", default="eager", choices=("eager", "never"), help="free buffers after their last use (default: eager)"
    )
    group.add_argument(
        "--outputs",
        default="arena",
        choices=("arena", "caller"),
        help="caller: make outputs in arrays of the caller's, beside the arena, where that can be (default: arena)",
    )
    group.add_argument(
        "--order",
        default="listed",
        choices=("listed", "any"),
        help="any: add control edges, so that the plan holds under every order that keeps to edges (default: listed)",
    )
    group.add_argument(
        "--no-validate",
        action="store_true",
        help="accept a plan that is wrong, to see it be wrong (default: refuse it)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead (docs/json.md describes it)")


def add_plot_option(parser: argparse.ArgumentParser, what: str) -> None:
    """`--plot`."""
    parser.add_argument(
        "--plot", metavar="FILE", help=f"write {what} to FILE (.png, .svg, .pdf); needs the extra 'plot'"
    )


def check_plot(args: argparse.Namespace) -> None:
    """Refuse a `--plot` that cannot be written, before any work."""
    if args.plot:
        from memopt.report import check_picture_path

        check_picture_path(args.plot)


def load_model(args: argparse.Namespace) -> Graph:
    """The graph that MODEL names."""
    from memopt import models

    if models.has_model(args.model):
        _refuse(args, "dims", args.dims, "built-in models take --batch, --image and --sequence")
        for name in () if args.train else _TRAINING:
            _refuse(args, name, getattr(args, name), "it is for training; add --train")
        return models.build(
            args.model,
            batch=1 if args.batch is None else args.batch,
            image=args.image,
            sequence=args.sequence,
            layers=args.layers,
            seed=args.seed,
            train=args.train,
            loss=args.loss or "cross-entropy",
            optimizer=args.optimizer or "momentum",
            stats_device=args.stats_device,
        )
    if not Path(args.model).exists():
        names = ", ".join(info.name for info in models.list_models())
        raise LoadError(f"{args.model!r} is neither a file nor a built-in model; those are {names}")
    for name in ("batch", "image", "sequence", "layers", "train", *_TRAINING):
        _refuse(
            args, name, getattr(args, name), "it is for built-in models; a file's named dimensions are set with --dims"
        )
    import memopt

    dims = dict(_dimension(text) for text in args.dims)
    return memopt.load(args.model, dims=dims, weights=args.weights, seed=args.seed)


def _refuse(args: argparse.Namespace, name: str, value: object, reason: str) -> None:
    if value:
        raise OptionError(f"--{name.replace('_', '-')} does not go with {args.model}: {reason}")


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name or not size.isdigit():
        raise OptionError(f"--dims {text!r} is not of the form NAME=SIZE, such as batch=1")
    return name, int(size)


def load_feeds(graph: Graph, path: str | None, seed: int) -> dict[str, Any]:
    """Feeds from an `.npz` file (arrays by name; nothing in it is executed), or seeded random ones that fit `graph`."""
    import zipfile

    import numpy as np

    from memopt.models import random_feeds

    if path is None:
        return random_feeds(graph, seed)
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise LoadError(f"feeds {path!r} are not a readable .npz file of plain arrays: {error}") from None


def names_machine(args: argparse.Namespace) -> bool:
    """Whether any option of the command line says what machine there is."""
    return any((args.device, args.host_only, args.lacks, args.dtype, args.layout, args.capacity))


def make_machine(args: argparse.Namespace, default: tuple[str, ...] = ()) -> Machine:
    """The machine that the options describe; `default` are the devices beside the host where none are named."""
    from memopt.devices import HOST, Device, Machine

    if args.host_only and args.device:
        raise OptionError("--host-only and --device contradict each other")
    added = list(dict.fromkeys(args.device or (() if args.host_only else default)))
    options: dict[str, dict[str, Any]] = {name: {} for name in (HOST, *added)}
    for text in args.lacks:
        device, rest = _for_device("--lacks", text, options)
        options[device]["lacks"] = options[device].get("lacks", frozenset()) | frozenset(filter(None, rest.split(",")))
    for option, key in (("--dtype", "dtypes"), ("--layout", "layouts")):
        for text in getattr(args, option[2:]):
            device, rest = _for_device(option, text, options)
            options[device].setdefault(key, {}).update(_pairs(option, rest))
    for text in args.capacity:
        device, rest = _for_device("--capacity", text, options)
        options[device]["capacity_bytes"] = parse_bytes(rest)
    devices = tuple(Device(name, **options[name]) for name in added if name != HOST)
    return Machine(Device(HOST, **options[HOST]), devices, devices[0].name if devices else HOST)


def _for_device(option: str, text: str, known: dict[str, dict[str, Any]]) -> tuple[str, str]:
    device, colon, rest = text.partition(":")
    if not colon or not rest:
        raise OptionError(f"{option} {text!r} is not of the form DEVICE:...")
    if device not in known:
        raise OptionError(
            f"{option} {text!r} names the device {device!r}, which is not there; add it with --device {device}"
        )
    return device, rest


def _pairs(option: str, text: str) -> dict[str, str]:
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if not all(pairs) or not all(pairs.values()):
        raise OptionError(f"{option}: {text!r} is not a list of A=B")
    return pairs


def parse_bytes(text: str) -> int:
    """`100MiB`, `2.5GB` or `4096` as bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise OptionError(f"{text!r} is not a number of bytes, such as 4096, 100MiB or 2.5GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def compile_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `memopt.compile`, the graph apart."""
    return {
        "passes": args.strategy,
        "machine": make_machine(args),
        "transfer": args.transfer,
        "free": args.free,
        "outputs": args.outputs,
        "order": args.order,
        "validate": not args.no_validate,
    }
