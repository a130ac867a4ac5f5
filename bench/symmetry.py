"""Is the function preserved? A random element by coset, and a re-basin by rebasin, on the same networks.

Every network has random weights, norm statistics and positions: with fresh ones, which are zeros and ones, a
permutation that forgets a statistic changes nothing and looks right.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import process
from bench.measurement import Measurement, installed, machine
from coset import symmetry, zoo
from coset.core import state as states
from coset.symmetries.verify import difference, generic

LIMIT = 300.0  # seconds for one tool on one network
SAME = 1e-4  # relative output change that float32 rounding explains
BATCH = 8
NOTES = (
    "coset infers and verifies the symmetry, and acts with a random permutation.",
    "rebasin traces the network, matches its weights to another random network, and permutes them.",
    "Each ran on one core in a process of its own, whose peak memory is shown; imports are not timed.",
)


class SplitAttention(nn.Module):
    """Self-attention `[N, T, dim] -> [N, T, dim]` with q, k and v as three layers, as many ViTs have it."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, dim = x.shape
        q, k, v = (
            layer(x).reshape(n, t, self.heads, dim // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, dim))
        return out


def split_vit() -> nn.Module:
    """The zoo's ViT with q, k and v as three layers."""
    model = zoo.ViT()
    for block in model.blocks:
        block.attention = SplitAttention(64, 4)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP 784-512-512-512-10": lambda: zoo.build("mlp:784-512-512-512-10"),
    "ResNet20 (batch norm)": lambda: zoo.build("resnet20"),
    "ViT (fused q, k, v)": lambda: zoo.build("vit"),
    "ViT (separate q, k, v)": split_vit,
}


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row for each network and tool, each measured in a process of its own."""
    rows: list[dict[str, Any]] = []
    for network in NETWORKS:
        for tool in TOOLS:
            say(f"{tool} on {network}")
            rows.append({"network": network, "tool": tool} | _measure(tool, network, seed))
    return Measurement(
        title="Output change after moving the weights, relative to the largest output",
        rows=rows,
        notes=NOTES,
        machine=machine("torch", "rebasin"),
    )


def _measure(tool: str, network: str, seed: int) -> dict[str, Any]:
    empty = dict.fromkeys(("output change", "tensors moved", "tensors", "CPU seconds", "peak MiB"))
    if tool != "coset" and installed(tool) is None:
        return {**empty, "verdict": f"not installed: pip install {tool}"}
    try:
        arguments = {"network": network, "seed": seed}
        row, peak = process.call(f"{__name__}:{TOOLS[tool].__name__}", arguments, LIMIT)
    except process.RunError as error:
        return {**empty, "verdict": f"failed: {error}"}
    verdict = "same function" if row["output change"] < SAME else "ANOTHER FUNCTION"
    return {**empty, **row, "peak MiB": peak, "verdict": verdict}


def by_coset(network: str, seed: int) -> dict[str, Any]:
    """Infer, verify, and act with a random permutation."""
    model, _, inputs = _pair(network, seed)
    symmetry(zoo.build("mlp:4-3-2"), (torch.ones(1, 4),))  # torch.export imports much at its first call
    before = states.of(model)
    start = time.process_time()
    sym = symmetry(model, inputs)
    after = sym.act(sym.random(torch.Generator().manual_seed(seed)), before)
    seconds = time.process_time() - start
    return _compare(model, before, after, inputs) | {"CPU seconds": seconds}


def by_rebasin(network: str, seed: int) -> dict[str, Any]:
    """Trace, match to another random network, and apply."""
    from rebasin import PermutationCoordinateDescent

    model, other, inputs = _pair(network, seed)
    small = [zoo.build("mlp:4-3-2") for _ in range(2)]
    PermutationCoordinateDescent(*small, torch.ones(1, 4)).rebasin()
    before = states.of(model)
    start = time.process_time()
    PermutationCoordinateDescent(other, model, inputs[0]).rebasin()
    seconds = time.process_time() - start
    return _compare(model, before, states.of(model), inputs) | {"CPU seconds": seconds}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {"coset": by_coset, "rebasin": by_rebasin}


def _pair(network: str, seed: int) -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """Two networks of the same form with random weights and statistics, and inputs for both."""
    warnings.simplefilter("ignore")  # this process answers with numbers only
    torch.set_num_threads(1)  # so that CPU seconds are those of one core, whatever else runs
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pair = [NETWORKS[network]().eval() for _ in range(2)]
    for model in pair:
        model.load_state_dict(generic(states.of(model), generator))
    return pair[0], pair[1], zoo.example_input(pair[0], BATCH)


def _compare(model: nn.Module, before: states.State, after: states.State, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    with torch.no_grad():
        change = difference(*([states.call(model, state, inputs)] for state in (after, before)))
    changed = sum(not torch.equal(after[name], before[name]) for name in before)
    return {"output change": change, "tensors moved": changed, "tensors": len(before)}
