"""One safetensors file, read and written at the places that its header names, so that none is ever mapped.

The format: the length of the header in 8 bytes, a JSON header with the dtype, shape and place of each tensor, then
their bytes, without gaps. A mapped file counts as memory, and one larger than memory cannot be mapped at all.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from coset.core.errors import StateError
from coset.core.files import atomic_write

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

LENGTH = 8  # bytes
LONGEST_HEADER = 100_000_000  # bytes, as for other readers of the format
MOST_AXES = 64
LARGEST = 2**63  # numbers and bytes are counted in 64 bits


@dataclass(frozen=True)
class TensorPlace:
    """What a tensor is, and the bytes of the file that it lies in."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class Shard:
    """One safetensors file: what it holds, read once, and its tensors, read from the file each time.

    A file that changes meanwhile is refused.

    Raises:
        StateError: If it is no safetensors file, or only a part of one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with _open(path) as file:
                self.stamp = _stamp(file)
                self.places, self.metadata = _header(file, path)
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(f"{path} is not a complete safetensors file: {_reason(error)}.") from error

    def read(self, name: str) -> Tensor:
        """A tensor of its own."""
        place = self.places[name]
        tensor = torch.empty(place.shape, dtype=place.dtype)
        try:
            with _open(self.path) as file:
                is_same = _stamp(file) == self.stamp and _fill(file, place, tensor)
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StateError(f"{self.path} was changed or removed while it was in use.")
        return tensor


def write_stream(
    path: str | Path,
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one `.safetensors` file, atomically: `layout` says what each tensor is, `read` gives it in its turn.

    Those of the widest numbers come first, so that each begins at a multiple of its numbers' size.
    """
    names = sorted(layout, key=lambda name: -layout[name][0].itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in names:
        dtype, shape = layout[name]
        start, end = end, end + dtype.itemsize * prod(shape)
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH, "little"))
        file.write(text)
        for name in names:
            dtype, shape = layout[name]
            x = read(name)
            if x.dtype != dtype or tuple(x.shape) != tuple(shape):
                raise StateError(f"Tensor '{name}' is {x.dtype} {tuple(x.shape)} where {dtype} {shape} is expected.")
            file.write(_bytes(x.detach().cpu().resolve_conj().resolve_neg().contiguous()))


def _open(path: Path) -> BinaryIO:
    """A plain file: to open another kind, such as a pipe, may wait for ever."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no plain file")
    return path.open("rb", buffering=0)


def _stamp(file: BinaryIO) -> tuple[int, int, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _bytes(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return x.flatten().view(torch.uint8).numpy().data if x.numel() else memoryview(b"")


def _fill(file: BinaryIO, place: TensorPlace, tensor: Tensor) -> bool:
    """Read the numbers of a tensor, and whether all of them are there."""
    memory, done = _bytes(tensor), 0
    file.seek(place.start)
    while done < len(memory):  # one call reads two gigabytes at most
        count = file.readinto(memory[done:])  # type: ignore[attr-defined]
        if not count:
            return False
        done += count
    return True


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, TensorPlace], dict[str, str]]:
    """The places of the tensors, in their order in the file, and the metadata.

    Raises ValueError, saying what is wrong, unless they fill the file without gaps.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(LENGTH), "little")
    if size < LENGTH or length > size - LENGTH:
        raise ValueError("it ends within its header")
    if length > LONGEST_HEADER:
        raise ValueError("its header is too long")
    header = json.loads(_all(file, length).decode("utf-8"), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not (isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())):
        raise ValueError("its metadata is more than texts by name")
    begin = LENGTH + length
    places = {name: _place(name, entry, begin, path) for name, entry in header.items()}
    order = sorted(places, key=lambda name: (places[name].start, places[name].end))
    bounds = [begin, *(bound for name in order for bound in (places[name].start, places[name].end)), size]
    if any(end != start for end, start in list(pairwise(bounds))[::2]):
        raise ValueError("its tensors do not fill it without gaps")
    return {name: places[name] for name in order}, metadata


def _all(file: BinaryIO, length: int) -> bytes:
    parts = []
    while length > 0 and (part := file.read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused where a name comes twice, since readers differ in which of the two they take."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name in its header comes twice")
    for name in result:
        name.encode()  # half of a surrogate pair is no text
    return result


def _place(name: str, entry: object, begin: int, path: Path) -> TensorPlace:
    """The place of one tensor, `begin` bytes before which there are none."""
    if not (isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}):
        raise ValueError(f"the entry of '{name}' has not dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(code, str) and _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise ValueError(f"the entry of '{name}' has not dtype, shape and data_offsets")
    if code not in DTYPES:
        raise StateError(f"Tensor '{name}' in {path} has dtype {code}, which torch cannot hold.")
    dtype, (start, end) = DTYPES[code], offsets
    if len(shape) > MOST_AXES or prod(max(size, 1) for size in shape) >= LARGEST:
        raise ValueError(f"'{name}' has a shape that no tensor has")
    if prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"'{name}' has not as many bytes as its shape needs")
    return TensorPlace(dtype, tuple(shape), begin + start, begin + end)


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(x) is int and 0 <= x < LARGEST for x in values)


def _reason(error: BaseException) -> str:
    """The cause on one line, without the file name that the sentence has already."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")
