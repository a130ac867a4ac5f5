"""Exact linear assignment: coset's kernel and scipy, one core each, on costs of many kinds.

A row is one kind and size. `warm` is a second solve, from the duals of the first, after the matrix has changed as it
does from one sweep of weight matching to the next.
"""

from __future__ import annotations

import math
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bench import process
from bench.measurement import Measurement, machine
from coset import assignment, data, zoo
from coset.assignment import lap
from coset.core.memory import peak_mib

SIZES = (512, 1024, 2048, 4096, 8192)
LIMIT = 25  # CPU seconds for scipy on one matrix
PATIENCE = 600.0  # seconds for anything, on a busy machine too
REPEATS = 3
ENOUGH = 5.0  # seconds after which a solve is not repeated
STEPS = 25  # of training
NOTES = (
    "cold, warm: CPU seconds of coset; the ratios are those of scipy to these. Both on one core, the least of 3.",
    "warm: the matrix of the next sweep, from the duals of this one. Costs are float32, and maximized.",
    "passes: cold seconds by those of one pass over the matrix. MiB: peak memory of the solves beyond the matrices.",
    "gap: the larger of the two certified gaps, relative to the value.",
    f"A solve of over {ENOUGH:.0f} s is not repeated. Where scipy was stopped after {LIMIT} s, there is no ratio.",
)
Costs = NDArray[np.float32]
CostPair = tuple[Costs, Costs]


def uniform(rng: np.random.Generator, n: int) -> CostPair:
    """Independent entries; the next sweep changes them by a hundredth."""
    cost = rng.random((n, n), dtype=np.float32)
    return cost, cost + np.float32(0.01) * rng.random((n, n), dtype=np.float32)


def gaussian(rng: np.random.Generator, n: int) -> CostPair:
    """`A B^T` of two random layers."""
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    return _sweeps(rng, a, b)


def permuted(rng: np.random.Generator, n: int) -> CostPair:
    """`A B^T` of a layer and a permuted copy of it, under noise of twice its size."""
    a, noise = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    return _sweeps(rng, a, a[rng.permutation(n)] + 2 * noise)


def low_rank(rng: np.random.Generator, n: int) -> CostPair:
    """`A B^T` of two layers whose singular values fall as 1 / k, as those of trained layers do."""
    spectrum = (np.arange(1, n + 1) ** -1.0).astype(np.float32)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) * spectrum for _ in range(2))
    return _sweeps(rng, a, b)


def trained(rng: np.random.Generator, n: int) -> CostPair:
    """Weight matching of the second hidden layer of two MLPs 64-n-n-10 trained on digits, in its first two sweeps."""
    a, b = (_trained_layers(n, int(seed)) for seed in rng.integers(0, 2**31, 2))
    p = assignment.solve(a[0] @ b[0].T + a[1].T @ b[1]).permutation.numpy()
    outer = a[2].T @ b[2]
    return a[1] @ b[1].T + outer, a[1] @ b[1][:, p].T + outer


FAMILIES: dict[str, tuple[Callable[[np.random.Generator, int], CostPair], int]] = {  # and the largest size
    "uniform": (uniform, 8192),
    "Gaussian": (gaussian, 8192),
    "permuted copies": (permuted, 8192),
    "low rank": (low_rank, 8192),
    "trained MLPs": (trained, 2048),
}


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row for each kind and size; coset and scipy each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for family, (_, largest) in FAMILIES.items():
        for n in (size for size in SIZES if size <= largest):
            say(f"{family}, n = {n}")
            rows.append({"cost": family, "n": n} | _measure(family, n, seed))
    return Measurement(
        title=f"Linear assignment by coset ({lap.kernel()} kernel) and by scipy",
        rows=rows,
        notes=NOTES,
        machine=machine("torch", "scipy", "numpy"),
    )


def _measure(family: str, n: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        process.call(f"{__name__}:make", {"family": family, "n": n, "seed": seed, "folder": folder}, PATIENCE)
        ours, peak = process.call(f"{__name__}:by_coset", {"folder": folder}, PATIENCE)
        scipy, verdict = _by_scipy(folder, ours["value"])
    return {
        "cold": ours["cold"],
        "scipy": scipy,
        "ratio": scipy and scipy / ours["cold"],
        "warm": ours["warm"],
        "warm ratio": scipy and scipy / ours["warm"],
        "passes": ours["cold"] / ours["pass"],
        "gap": ours["gap"],
        "MiB": peak - ours["MiB before"],
        "verdict": verdict,
    }


def _by_scipy(folder: str, value: float) -> tuple[float | None, str]:
    """scipy's seconds, None if it was stopped, and whether it found `value`."""
    try:
        theirs, _ = process.call(f"{__name__}:by_scipy", {"folder": folder}, PATIENCE)
    except process.RunError as error:
        if str(error) != f"exit code {-signal.SIGXCPU}":
            raise
        return None, f"scipy stopped after {LIMIT} s"
    same = abs(theirs["value"] - value) <= 1e-9 * abs(value)
    return theirs["seconds"], "same value" if same else "ANOTHER VALUE"


def make(family: str, n: int, seed: int, folder: str) -> dict[str, Any]:
    """Write the two matrices of a row."""
    make_pair, _ = FAMILIES[family]
    for when, cost in zip(("cold", "warm"), make_pair(np.random.default_rng([seed, n]), n), strict=True):
        np.save(Path(folder) / f"{when}.npy", cost)
    return {}


def by_coset(folder: str) -> dict[str, Any]:
    """Seconds of both solves and of one pass over the matrix, the first value, and the larger gap."""
    first, second = (np.load(Path(folder) / f"{when}.npy") for when in ("cold", "warm"))
    assignment.solve(first[:64, :64])  # loads the library
    before = peak_mib()
    cold_seconds, cold = _fastest(lambda: assignment.solve(first))
    warm_seconds, warm = _fastest(lambda: assignment.solve(second, warm=cold.duals))
    pass_seconds, _ = _fastest(first.max)
    return {
        "cold": cold_seconds,
        "warm": warm_seconds,
        "pass": pass_seconds,
        "gap": max(solution.gap / abs(solution.value) for solution in (cold, warm)),
        "value": cold.value,
        "MiB before": before,
    }


def by_scipy(folder: str) -> dict[str, Any]:
    """Seconds and value for the first matrix; the system ends this process after LIMIT seconds of work."""
    from scipy.optimize import linear_sum_assignment

    cost = np.load(Path(folder) / "cold.npy")
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + LIMIT, hard))
    seconds, (rows, columns) = _fastest(lambda: linear_sum_assignment(cost, maximize=True))
    return {"seconds": seconds, "value": float(cost[rows, columns].sum(dtype=np.float64))}


def _fastest(call: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU seconds of a few calls, as other work on the machine only adds to them; and the last result."""
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH:
        start = time.thread_time()  # of the process, idle threads of BLAS would count too, in steps of 4 ms
        result = call()
        seconds.append(time.thread_time() - start)
    return min(seconds), result


def _sweeps(rng: np.random.Generator, a: Costs, b: Costs) -> CostPair:
    """`A B^T`, and again after a tenth of the shared axis of B was permuted, as by the assignments of other layers."""
    rows = rng.choice(len(a), max(2, len(a) // 10), replace=False)
    first = a @ b.T
    return first, first + a[:, rows] @ (b[:, np.roll(rows, 1)] - b[:, rows]).T


def _trained_layers(n: int, seed: int) -> list[Costs]:
    torch.manual_seed(seed)
    model = zoo.build(f"mlp:64-{n}-{n}-10")
    inputs, targets = data.load("digits", flatten=True).train
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
    return [weight.detach().numpy() for name, weight in model.named_parameters() if name.endswith("weight")]
