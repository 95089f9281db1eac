"""`TensorProto` to NumPy, with every size checked; data in other files is read only from inside the model's folder.

Holds true: a tensor is read only if its dims, dtype and bytes agree; no size that a file claims is allocated before the
bytes for it have been seen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from memopt.errors import LoadError
from memopt.types import TensorType

__all__ = ["MAX_RANK", "check_tensor", "dtype_name", "element_dtype", "read_tensor", "tensor_type"]

#: NumPy's limit is 64; nothing sensible has more than a few.
MAX_RANK = 32

_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
}


def element_dtype(number: int) -> str | None:
    """The dtype of an ONNX element type, or None if memopt has none."""
    return _DTYPES.get(number)


def dtype_name(number: int) -> str:
    """An ONNX element type for people: `BFLOAT16`."""
    names = dict(zip(TensorProto.DataType.values(), TensorProto.DataType.keys(), strict=True))
    return str(names.get(number, number))


def tensor_type(tensor: TensorProto, where: str) -> TensorType:
    """The type that a tensor claims to have; raises `LoadError` for what no tensor can have."""
    dtype = element_dtype(tensor.data_type)
    if dtype is None:
        raise LoadError(f"{where} has the element type {dtype_name(tensor.data_type)}, which memopt lacks")
    dims = list(tensor.dims)
    if len(dims) > MAX_RANK or any(dim < 0 for dim in dims):
        raise LoadError(f"{where} has the dims {_short(dims)}; want at most {MAX_RANK} numbers of 0 or more")
    return TensorType(tuple(dims), dtype)


def _short(dims: Sequence[int]) -> str:
    text = ", ".join(str(dim) for dim in dims[:8])
    return f"[{text}, …]" if len(dims) > 8 else f"[{text}]"


def check_tensor(tensor: TensorProto, where: str, folder: Path | None) -> None:
    """Raise `LoadError` unless the data of `tensor` is there and has the size that its dims and dtype claim.

    `where` names it in errors, `folder` is that of the model file (None: there is no file).
    """
    found = tensor_type(tensor, where)
    if tensor.HasField("segment"):
        raise LoadError(f"{where} is a segment of a tensor, which memopt does not read")
    if tensor.data_location == TensorProto.EXTERNAL:
        _external_place(tensor, found, where, folder)
    elif tensor.HasField("raw_data"):
        _check_bytes(where, found, len(tensor.raw_data))
    else:
        have = len(_typed_field(tensor, found))
        if have != found.num_elements:
            raise LoadError(f"{where} is {found}: {found.num_elements} elements, but the file holds {have}")


def read_tensor(tensor: TensorProto, where: str, folder: Path | None) -> NDArray[Any]:
    """The data of `tensor`, checked as by `check_tensor`."""
    check_tensor(tensor, where, folder)
    found = tensor_type(tensor, where)
    if tensor.data_location == TensorProto.EXTERNAL:
        path, offset = _external_place(tensor, found, where, folder)
        try:
            return np.fromfile(path, found.dtype, found.num_elements, offset=offset).reshape(found.shape)
        except OSError as error:
            raise LoadError(f"{where}: cannot read its external file {path}: {error.strerror or error}") from None
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, found.dtype).reshape(found.shape)
    return _read_typed(tensor, found)


def _check_bytes(where: str, found: TensorType, have: int) -> None:
    if have != found.nbytes:
        raise LoadError(f"{where} is {found}, which takes {found.nbytes} bytes, but the file holds {have} for it")


def _typed_field(tensor: TensorProto, found: TensorType) -> Any:
    """The field for data of this type; narrow types are kept in `int32_data`, float16 as its bits."""
    if found.dtype in ("float32", "float64"):
        return tensor.float_data if found.dtype == "float32" else tensor.double_data
    if found.dtype in ("int64", "uint64", "uint32"):
        return tensor.int64_data if found.dtype == "int64" else tensor.uint64_data
    return tensor.int32_data


def _read_typed(tensor: TensorProto, found: TensorType) -> NDArray[Any]:
    numbers = _typed_field(tensor, found)
    if found.dtype == "float16":
        return np.array(numbers, np.int64).astype(np.uint16).view(np.float16).reshape(found.shape)
    dtype = found.dtype if found.dtype in ("float32", "float64", "uint64") else "int64"
    return np.array(numbers, dtype).astype(found.dtype).reshape(found.shape)


def _external_place(tensor: TensorProto, found: TensorType, where: str, folder: Path | None) -> tuple[Path, int]:
    """The file and the offset at which external data lies, all of it inside the file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise LoadError(
            f"{where} is in the external file {location!r}, but the model was not loaded from a file; give its path"
        )
    path = _inside(folder, location, where)
    offset = _number(entries, "offset", 0, where)
    length = _number(entries, "length", found.nbytes, where)
    _check_bytes(where, found, length)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise LoadError(f"{where}: cannot read its external file {path}: {error.strerror or error}") from None
    if offset + length > size:
        end = offset + length
        raise LoadError(
            f"{where} is at bytes [{offset}, {end}) of {path.name}, which has only {size}; is it truncated?"
        )
    return path, offset


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise LoadError(f"{where}: the {key} of its external data is {text!r}; want a number of 0 or more")
    return int(text)


def _inside(folder: Path, location: str, where: str) -> Path:
    """The file at `location`, which must be a regular file in `folder` or below, whatever links lie on the way."""
    way_out = "external data must lie in the folder of the model"
    if not location or "\0" in location:
        raise LoadError(f"{where}: the location of its external data is {location!r}; {way_out}")
    if os.path.isabs(location) or ".." in Path(location).parts or "\\" in location:
        raise LoadError(f"{where}: its external data is at {location!r}, outside of {folder}; {way_out}")
    try:
        root = folder.resolve(strict=True)
        path = (folder / location).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadError(f"{where}: its external file {location!r} in {folder} cannot be reached: {reason}") from None
    if not path.is_relative_to(root):
        raise LoadError(f"{where}: its external data {location!r} is a link that leaves {folder}; {way_out}")
    if not path.is_file():
        raise LoadError(f"{where}: its external data {location!r} in {folder} is not a regular file")
    return path
