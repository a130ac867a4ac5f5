"""Safetensors written tensor by tensor, so that no more than one of them is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from coset.checkpoint import DTYPES, INDEX, LazyState
from coset.checks import is_finite
from coset.errors import StateError
from coset.files import atomic_write, write_json

CODES = {dtype: code for code, dtype in DTYPES.items()}
# Shards of large checkpoints; a smaller one is a single file.
SHARD_BYTES = 5 * 10**9


def write_stream(
    path: str | Path,
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one `.safetensors` file, atomically: `layout` says what each tensor is, `read` gives it in its turn.

    The format: the length of the header in 8 bytes, a JSON header with the place of each tensor, then their bytes.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, (dtype, shape) in layout.items():
            x = read(name)
            if x.dtype != dtype or tuple(x.shape) != tuple(shape):
                raise StateError(f"Tensor '{name}' is {x.dtype} {tuple(x.shape)} where {dtype} {shape} is expected.")
            flat = x.detach().cpu().contiguous().flatten()
            file.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def write_like(
    source: LazyState, path: Path, read: Callable[[str], Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors of `source`, as `read` gives them: a `.safetensors` file, or a folder of shards with an index.

    The index is written last, so that a folder without one is recognised as half-written.
    """
    if path.suffix == ".safetensors":
        write_stream(path, source.layout(source), read, metadata)
        return
    path.mkdir(parents=True, exist_ok=True)
    shards = _shards(source)
    files = {f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors": names for k, names in enumerate(shards)}
    for file, names in files.items():
        write_stream(path / file, source.layout(names), read, metadata)
    total = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in source.layout(source).values())
    weight_map = {name: file for file, names in files.items() for name in names}
    write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


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
