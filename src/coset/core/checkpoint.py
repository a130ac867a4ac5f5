"""Safetensors read and written tensor by tensor, so that no more than one of them is in memory.

The format: the length of the header in 8 bytes, a JSON header with the dtype, shape and place of each tensor, then
their bytes, without gaps. Files are read at these places and never mapped: a mapped file counts as memory, and one
larger than memory cannot be mapped at all.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from coset.core import json_reader
from coset.core.errors import StateError
from coset.core.files import atomic_write, is_file, is_folder, require_file, write_json
from coset.core.json_reader import JsonObject, shown
from coset.core.names import plural
from coset.core.pickles import load_pickle
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, as_state, is_finite

INDEX = "model.safetensors.index.json"
PICKLES = (".pt", ".pth", ".bin")

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
SHARD_BYTES = 5 * 10**9  # of a large checkpoint; a smaller one is a single file
LARGEST = 2**63  # numbers and bytes are counted in 64 bits

# Under these names files say that they hold something else than a solution.
CURVE, POPULATION, FLOW = "coset.curve", "coset.population", "coset.flow"
OTHERS = {
    CURVE: "a curve and not one network: measure it with `coset barrier {path}`, or take a point of coset.load_curve.",
    POPULATION: "a population and not one network: open it with coset.Population.load.",
    FLOW: "a flow and not one network: draw some with `coset flow sample {path}`, or open it with coset.Flow.load.",
}


class LazyState(Shown, Mapping[str, Tensor]):
    """A read-only State over safetensors files, which reads one tensor at each access; see `open_state`.

    Args:
        shards: For each tensor name the file that holds it.
        metadata: The text stored beside the tensors, to which that of the files is added.
        path: What was opened.
    """

    def __init__(
        self, shards: Mapping[str, Shard], metadata: Mapping[str, str] | None = None, path: Path | None = None
    ) -> None:
        self._shards, self.path = dict(shards), path
        self.metadata = dict(metadata or {})
        for shard in {id(shard): shard for shard in self._shards.values()}.values():
            self.metadata.update(shard.metadata)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor, read from its file.

        Args:
            name: The tensor.
        """
        return self._shards[name].read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._shards  # the inherited test would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def select(self, names: Iterable[str]) -> LazyState:
        """These tensors alone, without reading them.

        Args:
            names: Those to keep.
        """
        return LazyState({name: self._shards[name] for name in names}, self.metadata, self.path)

    def _shown(self) -> Table:
        rows = [(name, str(self.dtype(name)).removeprefix("torch."), tuple(self.shape(name))) for name in self]
        numbers = sum(self.shape(name).numel() for name in self)
        files = plural(len({id(shard) for shard in self._shards.values()}), "file")
        return Table(f"LazyState: {plural(len(self), 'tensor')}, {numbers:,} numbers in {files}, read when used", rows)

    def shape(self, name: str) -> torch.Size:
        """The shape of a tensor, without reading it.

        Args:
            name: The tensor.
        """
        return torch.Size(self._shards[name].extents[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor, without reading it.

        Args:
            name: The tensor.
        """
        return self._shards[name].extents[name].dtype

    def layout(self, names: Iterable[str]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The dtype and shape of tensors, without reading them.

        Args:
            names: The tensors.
        """
        return {name: (self.dtype(name), tuple(self.shape(name))) for name in names}


def open_state(path: str | Path) -> LazyState:
    """Open a safetensors file, a `*.index.json`, or a folder with `model.safetensors.index.json`, lazily.

    Nothing but the header is read; a tensor is when it is used. Names are in the order of the file.

    Args:
        path: The file, or the folder.

    Returns:
        A mapping of tensors by name with `shape`, `dtype` and `metadata`.

    Raises:
        StateError: If there is none, a file is damaged, or the index and its shards do not hold the same tensors.

    Example:
        >>> coset.save_state(model, "model.safetensors", {"epoch": "3"})
        >>> lazy = coset.open_state("model.safetensors")
        >>> lazy.shape("layers.0.weight"), lazy.metadata["epoch"]
        (torch.Size([16, 64]), '3')
    """
    path = Path(path)
    if is_folder(path):
        if not (path / INDEX).is_file():
            raise StateError(f"The folder {path} has no {INDEX}, so name the checkpoint file itself.")
        return LazyState(_open_index(path / INDEX), path=path)
    require_file(path, StateError)
    if path.name.endswith(".index.json"):
        return LazyState(_open_index(path), path=path)
    if path.suffix == ".safetensors":
        shard = Shard(path)
        return LazyState(dict.fromkeys(shard.extents, shard), shard.metadata, path)  # also of a file without tensors
    raise StateError(f"{path} cannot be read one tensor at a time: its name must end in .safetensors.")


def load_state(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Read a state from whatever `open_state` opens, or from a `.pt`, `.pth` or `.bin` of plain tensors.

    A pickle that wraps its state as `{"state_dict": ...}` or `{"model": ...}` is unwrapped, and no code in it is run.
    Names are as they are stored; safetensors does not keep their order. `coset.state.check` tells whether the state
    fits a model and is finite.

    Args:
        path: The file, or a folder of shards.
        device: Where the tensors go.

    Returns:
        The tensors by name.

    Raises:
        StateError: If there is no such file, its format is unknown, or it is damaged or holds more than tensors.

    Example:
        >>> coset.save_state(a, "a.safetensors")
        >>> coset.state.allclose(coset.load_state("a.safetensors"), a.mean)
        True
    """
    path = Path(path)
    if is_folder(path) or path.name.endswith((".safetensors", ".index.json")):
        state: State = open_state(path)
    elif path.suffix in PICKLES:
        state = load_pickle(path)
    else:
        require_file(path, StateError)
        raise StateError(
            f"{path} is of no known format: its name must end in .safetensors, .index.json or one of "
            f"{', '.join(PICKLES)}."
        )
    return {name: x.to(device) for name, x in state.items()}


def save_state(state: StateLike, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a state or population to a `.safetensors` file, atomically.

    Tensors that share memory (tied weights, views) are each written in full under their own name. On
    failure there is no new file and an old one is untouched.

    Args:
        state: Tensors by name, a module, or a solution that is no distribution.
        path: The file, whose name ends in `.safetensors`.
        metadata: Text to store beside the tensors.

    Raises:
        StateError: If the name is another, a tensor has a type that the format lacks, or the file cannot be written.

    Example:
        >>> coset.save_state(model, "model.safetensors")
        >>> list(coset.load_state("model.safetensors"))[0]
        'layers.0.bias'
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise StateError(f"A state is saved as safetensors, so the name {path} must end in .safetensors.")
    tensors = dict(sorted(as_state(state).items()))
    for name, x in tensors.items():
        if x.dtype not in CODES or x.layout != torch.strided:
            raise StateError(f"Tensor '{name}' ({x.dtype}, {x.layout}) cannot be stored in safetensors.")
    try:
        layout = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
        write_stream(path, layout, tensors.__getitem__, metadata)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {_reason(error)}.") from error


def _open_index(path: Path) -> dict[str, Shard]:
    """The open shard of each tensor that the index `{"weight_map": {tensor: shard file}}` names."""
    weight_map = JsonObject(json_reader.read(path), str(path)).names("weight_map")
    shards = {}
    for file in dict.fromkeys(weight_map.values()):
        # An index must not lead out of its own folder.
        if Path(file).name != file or not is_file(path.parent / file):
            raise StateError(f"{path} names the shard {shown(file)}, which is not a file in its folder.")
        shards[file] = Shard(path.parent / file)
        stored, listed = set(shards[file].extents), {n for n, f in weight_map.items() if f == file}
        if listed - stored:
            raise StateError(f"{path} puts '{min(listed - stored)}' in the shard {file}, which lacks it.")
        if stored - listed:
            raise StateError(f"{path} does not put '{min(stored - listed)}' in the shard {file}, which has it.")
    return {name: shards[file] for name, file in weight_map.items()}


def write_like(
    source: LazyState, path: Path, read: Callable[[str], Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors of `source`, as `read` gives them: a `.safetensors` file, or a folder of shards with an index.

    The index is written last, so that a folder without one is recognised as half-written. On failure the folder is as
    it was before.
    """
    if path.suffix == ".safetensors":
        write_stream(path, source.layout(source), read, metadata)
        return
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    shards = _shards(source)
    files = {f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors": names for k, names in enumerate(shards)}
    total = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in source.layout(source).values())
    weight_map = {name: file for file, names in files.items() for name in names}
    try:
        for file, names in files.items():
            write_stream(path / file, source.layout(names), read, metadata)
        write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    except BaseException:
        for file in files:
            (path / file).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # somebody else may have put a file there
                path.rmdir()
        raise


def _shards(source: LazyState) -> list[list[str]]:
    """Names in their order, cut where a shard is full."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, (dtype, shape) in source.layout(source).items():
        more = dtype.itemsize * torch.Size(shape).numel()
        if shards[-1] and size + more > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += more
    return shards


def check_finite(source: Mapping[str, Tensor], names: Iterable[str], where: str) -> None:
    """Refuse NaN and infinities, one tensor at a time."""
    for name in names:
        if not is_finite(source[name]):
            raise StateError(f"Tensor '{name}' in {where} has NaN or infinite values.")


def refuse_other(path: Path) -> None:
    """Refuse a file of something else where one network is wanted: it would pass for one with strange names."""
    if path.suffix != ".safetensors" or not path.is_file():
        return
    metadata = open_state(path).metadata
    for key, advice in OTHERS.items():
        if key in metadata:
            raise StateError(f"{path} holds {advice.format(path=path)}")


@dataclass(frozen=True)
class Extent:
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
                self.extents, self.metadata = _header(file, path)
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(f"{path} is not a complete safetensors file: {_reason(error)}.") from error

    def read(self, name: str) -> Tensor:
        """A tensor of its own."""
        extent = self.extents[name]
        tensor = torch.empty(extent.shape, dtype=extent.dtype)
        try:
            with _open(self.path) as file:
                is_same = _stamp(file) == self.stamp and _fill(file, extent, tensor)
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


def _fill(file: BinaryIO, extent: Extent, tensor: Tensor) -> bool:
    """Read the numbers of a tensor, and whether all of them are there."""
    memory, done = _bytes(tensor), 0
    file.seek(extent.start)
    while done < len(memory):  # one call reads two gigabytes at most
        count = file.readinto(memory[done:])  # type: ignore[attr-defined]
        if not count:
            return False
        done += count
    return True


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, Extent], dict[str, str]]:
    """The extents of the tensors, in their order in the file, and the metadata.

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
    extents = {name: _extent(name, entry, begin, path) for name, entry in header.items()}
    order = sorted(extents, key=lambda name: (extents[name].start, extents[name].end))
    bounds = [begin, *(bound for name in order for bound in (extents[name].start, extents[name].end)), size]
    if any(end != start for end, start in list(pairwise(bounds))[::2]):
        raise ValueError("its tensors do not fill it without gaps")
    return {name: extents[name] for name in order}, metadata


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


def _extent(name: str, entry: object, begin: int, path: Path) -> Extent:
    """The extent of one tensor, `begin` bytes before which there are none."""
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
    return Extent(dtype, tuple(shape), begin + start, begin + end)


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(x) is int and 0 <= x < LARGEST for x in values)


def _reason(error: BaseException) -> str:
    """The cause on one line, without the file name that the sentence has already."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")
