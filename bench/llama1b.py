"""Align two random 1-billion-parameter Llama-shaped bfloat16 checkpoints, one a hidden permutation of the other.

Both are written as shards, B with noise of a tenth of each tensor's deviation. `coset align --meta` runs in a process
of its own, whose peak memory is measured; its permutations must undo the hidden ones exactly.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import coset
from bench.record import Out, device_name, report, versions
from coset import zoo
from coset.cli.options import DeviceOption
from coset.core.checkpoint import INDEX, write_stream
from coset.core.files import write_json
from coset.symmetries.serialization import load_element

NOISE = 0.1
MODEL = (
    "gpt:vocab=32000,context=16,dim=2048,depth={depth},heads=32,kv_heads=4,rope=true,swiglu=true,tied=false,norm=rms"
)
SHARD = 10**9


def main(
    device: DeviceOption = "cpu",
    depth: Annotated[int, typer.Option(help="Transformer blocks.")] = 22,
    folder: Annotated[Path | None, typer.Option(help="Where the checkpoints go, for as long as they are used.")] = None,
    out: Out = None,
) -> None:
    """Make the checkpoints, align them, compare and print."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        record = measure(Path(name), device, depth)
    report(record, out)


def measure(folder: Path, device: str, depth: int) -> dict[str, object]:
    """One run; every figure in the record."""
    spec = MODEL.format(depth=depth)
    with torch.device("meta"):
        model = zoo.build(spec)
        inputs = zoo.example_input(model)
    sym = coset.symmetry(model, inputs)
    hidden = sym.random(torch.Generator().manual_seed(1))
    shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}

    def first(name: str) -> Tensor:
        generator = torch.Generator().manual_seed(hash_of(name))
        x = 0.02 * torch.randn(shapes[name], generator=generator)
        return (x + 1.0 if len(shapes[name]) == 1 else x).bfloat16()

    def second(name: str) -> Tensor:
        x = first(name).float()
        generator = torch.Generator().manual_seed(hash_of(name) + 1)
        noisy = x + NOISE * 0.02 * torch.randn(x.shape, generator=generator)
        return sym.act(hidden, {name: noisy})[name].bfloat16()

    for part, read in (("a", first), ("b", second)):
        write_shards(folder / part, shapes, read)
    command = [sys.executable, "-m", "coset", "align", str(folder / "a"), str(folder / "b"), "--model", spec, "--meta"]
    command += ["--device", device, "--json", "-o", str(folder / "aligned")]
    start = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(process.stderr)
    alignment = json.loads(process.stdout)
    _, element = load_element(folder / "aligned.element.safetensors")
    undone = element @ hidden
    exact = all(torch.equal(undone[group.name], sym.identity()[group.name]) for group in sym.groups)
    return {
        "command": "python -m bench llama1b" + (f" --device {device}" if device != "cpu" else ""),
        "parameters": sum(torch.Size(shape).numel() for shape in shapes.values()),
        "groups": len(sym.groups),
        "permutations": sum(group.copies for group in sym.groups),
        "recovered exactly": exact,
        "seconds in all": seconds,
        "seconds of alignment": alignment["seconds"],
        "sweeps": alignment["sweeps"],
        "peak GiB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
        "distance before": alignment["distance_before"],
        "distance after": alignment["distance_after"],
        "device": device_name(device),
        "versions": versions(),
    }


def hash_of(name: str) -> int:
    """The same number for a name in every process."""
    return int.from_bytes(name.encode()[-6:], "little") * 2


def write_shards(folder: Path, shapes: dict[str, tuple[int, ...]], read: Callable[[str], Tensor]) -> None:
    """Shards of about a gigabyte with an index, one tensor in memory at a time."""
    folder.mkdir()
    rows: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        more = 2 * torch.Size(shape).numel()
        if rows[-1] and size + more > SHARD:
            rows.append([])
            size = 0
        rows[-1].append(name)
        size += more
    weight_map: dict[str, str] = {}
    for k, names in enumerate(rows):
        file = f"model-{k + 1:05d}-of-{len(rows):05d}.safetensors"
        write_stream(folder / file, {name: (torch.bfloat16, shapes[name]) for name in names}, read)
        weight_map |= dict.fromkeys(names, file)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})
