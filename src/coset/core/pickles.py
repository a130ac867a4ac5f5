"""Pickles of tensors, read without running what they name, and refused where their tensors are not plain."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.core.errors import StateError
from coset.core.files import Fault, require_file
from coset.core.json_reader import shown

WRAPPERS = ("state_dict", "model_state_dict", "model")  # the entry of a training checkpoint that holds the state


def load_pickle(path: Path) -> dict[str, Tensor]:
    """The state of a `.pt`, `.pth` or `.bin` file, unwrapped; see `coset.load_state`."""
    what = (
        "is damaged or holds more than plain tensors, so it is not loaded: save the state_dict() alone, or as "
        "safetensors"
    )
    content = read_pickle(path, torch.device("cpu"), what, StateError)
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping):
        raise StateError(f"{path} holds {type(content).__name__} where a dict of tensors is expected.")
    for name, x in content.items():
        if not isinstance(name, str) or not isinstance(x, Tensor):
            raise StateError(f"Entry {shown(name)} in {path} is {type(x).__name__} and not a named tensor.")
        kind = odd_kind(x)
        if kind is not None:
            raise StateError(f"Tensor {shown(name)} in {path} is {kind}: save plain tensors, which hold their numbers.")
    return {name: x.detach().resolve_conj().resolve_neg() for name, x in content.items()}


def read_pickle(path: Path, device: torch.device, what: str, error: Fault) -> Any:
    """What torch finds in a file by rebuilding tensors and plain containers alone.

    what: is said of a file that torch cannot read so, after its path.
    """
    require_file(path, error)
    try:
        _refuse_packed(path)
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as fault:  # a damaged pickle can raise anything; torch's text advises to run its code
        raise error(f"{path} {what}.") from fault


def _refuse_packed(path: Path) -> None:
    """torch packs nothing: an archive that would be larger than its file is none of its own, and may fill memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("the archive holds more than its size")


def odd_kind(x: Tensor) -> str | None:
    """What a tensor is that is none of numbers in memory, or has more entries than those; None if it is plain."""
    if x.is_meta:
        return "a meta tensor, which has no numbers"
    if x.is_quantized:
        return "quantized"
    if x.layout != torch.strided or x.is_nested:
        return f"of the layout {x.layout}"
    if x.numel() * x.element_size() > x.untyped_storage().nbytes():
        return "expanded: it has more entries than numbers"
    return None
