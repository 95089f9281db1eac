"""Entry points: one compiled `int32 entry(intp frame)` for each variant of a kernel, cached on disk.

A *frame* is an int64 record: the operands' addresses, then their shapes, then the scalars (a float as its float64
bits). A variant is a kernel's name with the dtypes and ranks of its arrays, the kinds of its scalars and, for a
generated loop, its expression. Its entry point is generated as an importable file in a cache folder and compiled with
`cache=True`; file and folder bear digests of the kernel's sources and of the versions of numba and Python, so a stale
entry is never loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import memopt
from memopt.errors import ExecutionError
from memopt.ops import KernelCall, Routine

__all__ = ["cache_folder", "entry_address", "frame_words", "run_kernel"]

_PACKAGE = Path(memopt.__file__).parent
_IMPORTS = re.compile(r"^\s*from memopt\.kernels\.(\w+) import", re.MULTILINE)
_LOCK = threading.Lock()
_ENTRIES: dict[str, Any] = {}


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """The folder of generated entry points: `$MEMOPT_CACHE`, or `memopt` in the user's cache folder; one for each
    version of numba, Python and the ABI."""
    import numba

    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    digest.update((_PACKAGE / "runtime" / "abi.py").read_bytes())
    base = os.environ.get("MEMOPT_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "memopt"
    )
    for root in (base, os.path.join(tempfile.gettempdir(), f"memopt-{os.getuid()}")):
        folder = Path(root) / f"entries-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise ExecutionError(f"no writable cache folder for compiled kernels: set MEMOPT_CACHE (tried {base})")


@lru_cache(maxsize=64)
def _family_digest(family: str) -> str:
    """A digest of the family's kernel file and of those that it imports: numba's own cache does not see them change."""
    seen: set[str] = set()
    digest = hashlib.sha256()
    pending = [family]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            source = (_PACKAGE / "kernels" / f"{name}.py").read_text(encoding="utf-8")
            digest.update(source.encode())
            pending.extend(_IMPORTS.findall(source))
    return digest.hexdigest()[:12]


def _variant(call: KernelCall) -> str:
    arrays = "_".join(f"{a.dtype}{len(a.shape)}" for a in call.arrays)
    scalars = "".join("f" if isinstance(s, float) else "i" for s in call.scalars)
    family = call.kernel.split(".")[0]
    name = f"{call.kernel.replace('.', '_')}__{arrays}__{scalars}__{_family_digest(family)}"
    if call.expression:
        name += "__" + hashlib.sha256(call.expression.encode()).hexdigest()[:12]
    return name


def frame_words(call: KernelCall, addresses: Sequence[int]) -> list[int]:
    """The frame of `call` with its arrays at `addresses`, in the order of `call.arrays`."""
    words = list(addresses)
    for array in call.arrays:
        words.extend(array.shape)
    for scalar in call.scalars:
        if isinstance(scalar, Routine):
            words.append(routine_address(scalar.name))
        elif isinstance(scalar, float):
            words.append(struct.unpack("<q", struct.pack("<d", scalar))[0])
        else:
            words.append(int(scalar))
    return words


@lru_cache(maxsize=64)
def routine_address(name: str) -> int:
    """The address of a BLAS routine of SciPy's `cython_blas`."""
    from numba.extending import get_cython_function_address

    return int(get_cython_function_address("scipy.linalg.cython_blas", name))


def _source(call: KernelCall) -> str:
    """The text of the entry module of this variant."""
    family, function = call.kernel.split(".")
    lines = ["from numba import cfunc, carray, types", "from memopt.runtime.abi import as_pointer"]
    if call.expression:
        loops = importlib.import_module(f"memopt.kernels.{family}")
        lines.append(loops.generate(function, call))
    else:
        lines.append(f"from memopt.kernels.{family} import {function} as kernel")
    count = len(call.arrays)
    size = count + sum(len(a.shape) for a in call.arrays) + len(call.scalars)
    lines += ["", "", '@cfunc("int32(intp)", cache=True)', "def entry(frame):"]
    lines.append(f"    words = carray(as_pointer(frame, types.int64), {max(size, 1)})")
    if any(isinstance(s, float) for s in call.scalars):
        lines.append(f"    reals = carray(as_pointer(frame, types.float64), {max(size, 1)})")
    at = count
    names = []
    for i, array in enumerate(call.arrays):
        rank = len(array.shape)
        shape = ", ".join(f"words[{at + d}]" for d in range(rank)) or "1"
        at += rank
        dtype = "boolean" if array.dtype == "bool" else array.dtype
        lines.append(f"    a{i} = carray(as_pointer(words[{i}], types.{dtype}), ({shape},))")
        names.append(f"a{i}")
    for scalar in call.scalars:
        names.append(f"{'reals' if isinstance(scalar, float) else 'words'}[{at}]")
        at += 1
    lines.append(f"    return kernel({', '.join(names)})")
    return "\n".join(lines) + "\n"


def entry_address(call: KernelCall) -> int:
    """The address of the compiled entry point for `call`'s variant (compiled, or loaded from the cache, on first
    use).
    """
    variant = _variant(call)
    entry = _ENTRIES.get(variant)
    if entry is None:
        with _LOCK:
            entry = _ENTRIES.get(variant)
            if entry is None:
                entry = _ENTRIES[variant] = _load(variant, _source(call))
    return int(entry.address)


def _load(variant: str, source: str) -> Any:
    name = f"memopt_{variant}"
    if len(name) > 120:
        name = f"memopt_{variant[:80]}_{hashlib.sha256(variant.encode()).hexdigest()[:16]}"
    path = cache_folder() / f"{name}.py"
    if not path.exists() or path.read_text() != source:
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(source)
        scratch.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExecutionError(f"cannot load the generated kernel {path}")
    module = importlib.util.module_from_spec(spec)
    from numba.core.errors import NumbaError

    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except NumbaError as error:
        lines = [line.strip() for line in str(error).splitlines() if "Error" in line]
        raise ExecutionError(f"kernel {variant} does not compile: {lines[-1] if lines else error}") from error
    return module.entry


def run_kernel(call: KernelCall, arrays: Sequence[NDArray[Any]]) -> int:
    """Run one kernel on NumPy arrays, in the order of `call.arrays` (contiguous, at least as many bytes as the call
    says).

    Returns the kernel's status. For tests and benchmarks; a plan runs through the VM.
    """
    from memopt.runtime.vm import run_rows

    for array, arg in zip(arrays, call.arrays, strict=True):
        if not array.flags.c_contiguous or array.nbytes < np.dtype(arg.dtype).itemsize * int(
            np.prod(arg.shape, dtype=np.int64)
        ):
            raise ExecutionError(f"{call.kernel}: array {array.dtype}{list(array.shape)} does not serve as {arg}")
    frame = np.array(frame_words(call, [a.ctypes.data for a in arrays]), np.int64)
    table = np.array([[entry_address(call), frame.ctypes.data]], np.int64)
    status = np.zeros(1, np.int64)
    run_rows(table, 0, 1, status)
    return int(status[0])
