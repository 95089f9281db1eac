"""Real models with their real weights: ONNX files that ship in Python wheels, planned, run and compared.

    python benchmarks/wheel_models.py [NAME ...] [--strategy none --strategy share ...] [--threads 1] [--json]
    python benchmarks/wheel_models.py [NAME ...] --fetch-only

The first run downloads each wheel without its dependencies (by pip, with whatever index pip is set up for), unpacks
the .onnx file into the cache folder and checks its digest; later runs and the tests use that file. The cache folder is
`models` in `$MEMOPT_CACHE`, or in `memopt` in the user's cache folder. Prints a table: height, peak, lower bound,
scratch, milliseconds of a run (the best of three) beside onnxruntime's, the largest difference from onnxruntime,
relative to the largest value of an output, and how many nodes had no kernel.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import memopt
from memopt.errors import LoadError, OptionError

Feeds = dict[str, np.ndarray]
STRATEGIES = ("none", "rename", "share", "best", "fuse")


@dataclass(frozen=True, slots=True)
class WheelModel:
    """An ONNX file in a wheel: `file` is its path there, `dims` are for `memopt.load`.

    `most_bytes` is the height that `share` must not exceed on one device in file order, batch 1.
    """

    package: str
    version: str
    file: str
    sha256: str
    dims: dict[str, tuple[int, ...]]
    most_bytes: int


def _mib(number: float) -> int:
    return int(number * 2**20)


_RAPID = ("rapidocr-onnxruntime", "1.4.4")
MODELS = {
    "ppocr_det": WheelModel(
        *_RAPID,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        {"x": (1, 3, 640, 640)},
        _mib(25.0),
    ),
    "ppocr_rec": WheelModel(
        *_RAPID,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        {"x": (1, 3, 48, 320)},
        _mib(1.88),
    ),
    "ppocr_cls": WheelModel(
        *_RAPID,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x": (1, 3, 48, 192)},
        _mib(0.32),
    ),
    "magika": WheelModel(
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": (1, 2048)},
        _mib(2.51),
    ),
    "basic_pitch": WheelModel(
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        {"serving_default_input_2:0": (1, 43844, 1)},
        _mib(4.62),
    ),
}


# -- getting the files ------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where the .onnx files are kept."""
    base = os.environ.get("MEMOPT_CACHE")
    if base:
        return Path(base) / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memopt" / "models"


def cached(name: str) -> Path:
    """The file of the model `name` in the cache, whether or not it is there; raises `OptionError`."""
    if name not in MODELS:
        raise OptionError(f"there is no wheel model {name!r}; there are: {', '.join(MODELS)}")
    return cache_folder() / f"{name}-{MODELS[name].version}.onnx"


def fetch(name: str) -> Path:
    """The file of the model `name`, from the cache or else from its wheel; raises `LoadError` if it cannot be had."""
    path, model = cached(name), MODELS.get(name)
    if path.exists() or model is None:
        return path
    with tempfile.TemporaryDirectory() as folder:
        unpacked = _unpack(_download(model, Path(folder)), model, Path(folder))
        found = hashlib.sha256(unpacked.read_bytes()).hexdigest()
        if found != model.sha256:
            raise LoadError(
                f"{model.file} of {model.package} {model.version} has the digest {found}, not the known one"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(unpacked, partial)
        partial.replace(path)  # whole or not at all
    return path


def _download(model: WheelModel, folder: Path) -> Path:
    """The wheel of the model's package, in `folder`."""
    what = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, what],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise LoadError(
            f"cannot download the wheel of {what} (pip says: {lines[-1] if lines else 'nothing'}). It needs a network, "
            f"or a pip that is set up for a local index; or put the file {Path(model.file).name} of that wheel at "
            f"{cached(next(name for name, one in MODELS.items() if one is model))}"
        )
    return wheel


def _unpack(wheel: Path, model: WheelModel, folder: Path) -> Path:
    """The model's file of the wheel, in `folder`."""
    target = folder / "model.onnx"
    with zipfile.ZipFile(wheel) as archive:
        if model.file not in archive.namelist():
            raise LoadError(f"{wheel.name} holds no {model.file}")
        with archive.open(model.file) as source, target.open("wb") as to:
            shutil.copyfileobj(source, to)
    return target


# -- running them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one strategy on one host device: what its plan takes, how long a run is, how far off it is."""

    model: str
    strategy: str
    num_nodes: int
    height_bytes: int
    peak_bytes: int
    lower_bound_bytes: int
    scratch_bytes: int
    seconds: float
    onnxruntime_seconds: float
    max_rel_error: float
    num_host_calls: int


def image_feeds(graph: memopt.Graph, seed: int = 0) -> Feeds:
    """Numbers as of normalised images in [-1, 1]; bytes for integer inputs."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in graph.inputs:
        shape = value.type.shape
        data = rng.uniform(-1, 1, shape) if value.type.dtype.startswith("float") else rng.integers(0, 256, shape)
        feeds[value.name] = data.astype(value.type.dtype)
    return feeds


def best_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The seconds of the fastest of some runs, after one that does not count."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def onnxruntime_outputs(path: Path, graph: memopt.Graph, feeds: Feeds, threads: int) -> tuple[list[Any], float]:
    """What onnxruntime makes of the file, in the order of the outputs, and the seconds of a run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    named = {theirs.name: feeds[ours.name] for theirs, ours in zip(session.get_inputs(), graph.inputs, strict=True)}
    return list(session.run(None, named)), best_seconds(lambda: session.run(None, named))


def rows_of(name: str, strategies: Sequence[str] = STRATEGIES, threads: int = 1) -> list[Row]:
    """The model `name`, which must be in the cache, under each strategy; `threads` are those of onnxruntime."""
    path = cached(name)
    graph = memopt.load(path, dims=MODELS[name].dims)
    feeds = image_feeds(graph)
    wanted, their_seconds = onnxruntime_outputs(path, graph, feeds, threads)
    return [_row((name, strategy), graph, feeds, wanted, their_seconds) for strategy in strategies]


def _row(names: tuple[str, str], graph: memopt.Graph, feeds: Feeds, wanted: list[Any], theirs: float) -> Row:
    """The row of (model, strategy)."""
    plan = memopt.compile(graph, names[1])
    outputs = plan.run(feeds)
    seconds = best_seconds(lambda: plan.run(feeds))
    error = 0.0
    for value, want in zip(graph.outputs, wanted, strict=True):
        distance = np.abs(outputs[value.name].astype(np.float64) - want).max(initial=0.0)
        error = max(error, float(distance / np.abs(want).max(initial=1e-30)))
    use = plan.devices["host"]
    sizes = (use.height_bytes, use.peak_bytes, use.lower_bound_bytes, use.scratch_bytes)
    return Row(*names, len(graph.nodes), *sizes, seconds, theirs, error, len(outputs.host_calls))


def _line(row: Row) -> str:
    sizes = (row.height_bytes, row.peak_bytes, row.lower_bound_bytes, row.scratch_bytes)
    mib = " ".join(f"{size / 2**20:8.3f}" for size in sizes)
    return (
        f"{row.model:12} {row.strategy:8} {row.num_nodes:5} {mib} {row.seconds * 1e3:9.1f} "
        f"{row.onnxruntime_seconds * 1e3:9.1f} {row.max_rel_error:9.1e} {row.num_host_calls:5}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="plan and run the ONNX models that ship in wheels")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MODELS)} (default: all)")
    default = ", ".join(STRATEGIES)
    parser.add_argument("--strategy", action="append", help=f"may be given several times (default: {default})")
    parser.add_argument("--threads", type=int, default=1, help="of onnxruntime and of BLAS (default: 1)")
    parser.add_argument("--fetch-only", action="store_true", help="only put the files into the cache")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)  # read when SciPy is loaded, by the first kernel
    try:
        names = options.names or list(MODELS)
        paths = [fetch(name) for name in names]
        if options.fetch_only:
            print("\n".join(map(str, paths)))
            return 0
        if not options.json:
            print(
                "MiB:                             height     peak    bound  scratch        ms    ort ms     error  host"
            )
        rows = []
        for name in names:
            rows += rows_of(name, options.strategy or STRATEGIES, options.threads)
            if not options.json:
                print("\n".join(map(_line, rows[-len(options.strategy or STRATEGIES) :])), flush=True)
    except (LoadError, OptionError) as error:
        print(f"wheel_models: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
