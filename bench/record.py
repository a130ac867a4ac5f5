"""Records of benchmarks that have options of their own: what they have in common."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import coset
from coset.core.files import write_json

Out = Annotated[Path | None, typer.Option(help="Write the record as JSON.")]


def versions() -> dict[str, str]:
    """Of coset, torch and Python."""
    return {"coset": coset.__version__, "torch": torch.__version__, "python": platform.python_version()}


def device_name(device: str) -> str:
    """Of the GPU, or how many cores of the CPU are used."""
    return torch.cuda.get_device_name() if device != "cpu" else f"{torch.get_num_threads()} CPU cores"


def report(record: Mapping[str, Any], out: Path | None) -> None:
    """Print a record, and write it where there is a place for it."""
    print(json.dumps(record, indent=1))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, record)
