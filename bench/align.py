"""How fast, how well? Matching the weights of two trained networks, by coset, by rebasin, and by plain scipy.

The networks are trained on the embedded digits, scaled to the input they want, in the same run.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import process
from bench.measurement import Measurement, installed, machine
from coset import MAP, align, data, fit, symmetry, zoo
from coset.core import state
from coset.core.checkpoint import load_state
from coset.symmetries.verify import difference
from coset_papers.rossi2023.textbook_matching import textbook_matching

LIMIT = 600.0  # seconds for one tool on one network
NETWORKS = {
    "MLP 784-512x3-10": ("mlp:784-512-512-512-10", 28, 5),
    "ResNet20": ("resnet20:in_channels=1", 8, 5),
    "ResNet20 width 4": ("resnet20:in_channels=1,width=4", 8, 2),
}
NOTES = (
    "Objective: <a, b> over the trained parameters after moving b, larger is better; not moved: before.",
    "CPU seconds: all that the tool does to two models; of matching: without finding the structure.",
    "plain scipy: coordinate descent as in git re-basin on coset's groups, cost matrices made anew each time.",
    "Each ran on one core in a process of its own, whose peak memory is shown; imports are not timed.",
)


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row for each network and tool."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network, (spec, size, epochs) in NETWORKS.items():
            say(f"training two of {network}")
            for k, solution in enumerate(fit(zoo.build(spec), digits(size), MAP(epochs=epochs), 2, seed)):
                solution.save(Path(folder) / f"{k}.safetensors")
            for tool in TOOLS:
                say(f"{tool} on {network}")
                rows.append({"network": network, "tool": tool} | _measure(tool, spec, size, folder, seed))
            ours = next(row for row in rows if row["network"] == network and row["tool"] == "coset")
            for row in rows:
                if row["network"] == network and row["CPU seconds"] is not None and ours["CPU seconds"]:
                    row["times coset"] = row["of matching"] / ours["of matching"] if row["of matching"] else None
    return Measurement(
        "Matching the weights of two trained networks", rows, NOTES, machine("torch", "scipy", "rebasin")
    )


def digits(size: int) -> data.Split:
    """The training digits as images of size x size pixels."""
    split = data.load("digits").train
    if size == split.inputs.shape[-1]:
        return split
    images = nn.functional.interpolate(split.inputs, size=(size, size), mode="bilinear")
    return data.Split(images, split.targets)


def _measure(tool: str, spec: str, size: int, folder: str, seed: int) -> dict[str, Any]:
    keys = ("objective", "not moved", "output change", "CPU seconds", "of matching", "times coset", "peak MiB")
    empty = dict.fromkeys((*keys, "verdict"))
    if tool == "rebasin" and installed(tool) is None:
        return {**empty, "verdict": f"not installed: pip install {tool}"}
    try:
        arguments = {"spec": spec, "size": size, "folder": folder, "seed": seed}
        row, peak = process.call(f"{__name__}:{TOOLS[tool].__name__}", arguments, LIMIT)
    except process.RunError as error:
        return {**empty, "verdict": f"failed: {error}"}
    verdict = "same function" if row["output change"] < 1e-4 else "ANOTHER FUNCTION"
    return {**empty, **row, "peak MiB": peak, "verdict": verdict}


def by_coset(spec: str, size: int, folder: str, seed: int) -> dict[str, Any]:
    """Infer, verify and align."""
    a, b, inputs = _pair(spec, size, folder)
    small = [zoo.build("mlp:4-3-2") for _ in range(2)]
    # torch.export imports much at its first call, and the kernel is loaded at its first.
    align(state.of(small[0]), state.of(small[1]), symmetry(small[0], (torch.ones(1, 4),)))
    before = state.of(b)
    start = time.process_time()
    sym = symmetry(a, (inputs,))
    middle = time.process_time()
    match = align(state.of(a), before, sym, generator=torch.Generator().manual_seed(seed))
    end = time.process_time()
    return _compare(a, b, before, sym.act(match.element, before), inputs) | {
        "CPU seconds": end - start,
        "of matching": end - middle,
    }


def by_scipy(spec: str, size: int, folder: str, seed: int) -> dict[str, Any]:
    """The textbook loop: every group in random order, every cost matrix from scratch, scipy's solver."""
    a, b, inputs = _pair(spec, size, folder)
    before = state.of(b)
    sym = symmetry(a, (inputs,), verify=False)
    start = time.process_time()
    element = textbook_matching([(state.of(a), before)], sym, torch.Generator().manual_seed(seed))
    after = sym.act(element, before)
    seconds = time.process_time() - start
    return _compare(a, b, before, after, inputs) | {"CPU seconds": seconds, "of matching": seconds}


def by_rebasin(spec: str, size: int, folder: str, seed: int) -> dict[str, Any]:
    """Trace, match and apply."""
    from rebasin import PermutationCoordinateDescent

    a, b, inputs = _pair(spec, size, folder)
    small = [zoo.build("mlp:4-3-2") for _ in range(2)]
    PermutationCoordinateDescent(*small, torch.ones(1, 4)).rebasin()
    before = state.of(b)
    start = time.process_time()
    descent = PermutationCoordinateDescent(a, b, inputs)
    middle = time.process_time()
    descent.rebasin()
    end = time.process_time()
    after = state.of(b)
    return _compare(a, b, before, after, inputs) | {"CPU seconds": end - start, "of matching": end - middle}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {
    "coset": by_coset,
    "plain scipy": by_scipy,
    "rebasin": by_rebasin,
}


def _pair(spec: str, size: int, folder: str) -> tuple[nn.Module, nn.Module, Tensor]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    models = []
    for k in range(2):
        model = zoo.build(spec)
        model.load_state_dict(load_state(Path(folder) / f"{k}.safetensors"))
        models.append(model.eval())
    return models[0], models[1], digits(size).inputs[:8]


def _compare(a: nn.Module, b: nn.Module, before: state.State, after: state.State, inputs: Tensor) -> dict[str, float]:
    trained = {name for name, _ in a.named_parameters()}
    reference = {name: x for name, x in state.of(a).items() if name in trained}

    def objective(of: state.State) -> float:
        return float(state.inner(reference, {name: of[name] for name in reference}))

    with torch.no_grad():
        outputs = [[state.call(b, of, (inputs,))] for of in (after, before)]
    return {"objective": objective(after), "not moved": objective(before), "output change": difference(*outputs)}
