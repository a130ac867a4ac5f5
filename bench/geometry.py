"""Digits of the sphere's logarithm and distance in float32, by angle: ours, the acos form, and geoopt if installed."""

from __future__ import annotations

import importlib
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from coset.core.files import write_json
from coset.weightspace import sphere

ANGLES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 2.0, 3.0,
          *(math.pi - gap for gap in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)))  # fmt: skip
PAIRS = 256
SphereMaps = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def acos_dist(x: Tensor, y: Tensor) -> Tensor:
    return torch.acos(sphere.dot(x, y).squeeze(-1).clamp(-1, 1))


def acos_log(x: Tensor, y: Tensor) -> Tensor:
    """angle * p / |p| with p = y - <x, y> x, as it is usually written."""
    across = y - sphere.dot(x, y) * x
    length: Tensor = torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    return acos_dist(x, y)[..., None] * across / length.clamp(min=1e-15)


def methods() -> dict[str, SphereMaps]:
    """Logarithm and distance, by who computes them."""
    maps: dict[str, SphereMaps] = {"coset": (sphere.log, sphere.angle), "acos": (acos_log, acos_dist)}
    try:
        geoopt = importlib.import_module("geoopt")
    except ImportError:
        return maps
    other = geoopt.manifolds.Sphere()
    return {**maps, f"geoopt {geoopt.__version__}": (other.logmap, other.dist)}


def pairs(angle: float, d: int) -> tuple[Tensor, Tensor]:
    """float32 points about this far apart, [PAIRS, d]."""
    generator = torch.Generator().manual_seed(0)
    x, e = torch.randn(2, PAIRS, d, generator=generator, dtype=torch.float64)
    x = sphere.project(x)
    e = sphere.project(sphere.tangent(x, e))
    return x.float(), (math.cos(angle) * x + math.sin(angle) * e).float()


def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log and distance of the directions of these very points, in float64.

    The angle is 2 atan2(|u - v|, |u + v|), the direction of log that of v -+ u less its part along u.
    """
    u, v = (z.double() / z.double().norm(dim=-1, keepdim=True) for z in (x, y))
    short = torch.where((u * v).sum(-1, keepdim=True) > 0, v - u, v + u)
    across = short - (short * u).sum(-1, keepdim=True) * u
    angle = 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))
    return angle[..., None] * across / across.norm(dim=-1, keepdim=True), angle


def measure(angle: float, d: int) -> dict[str, Any]:
    """The largest relative error of each method over the pairs."""
    x, y = pairs(angle, d)
    log, distance = exact(x, y)
    row: dict[str, Any] = {"angle": angle, "pi_minus_angle": math.pi - angle, "d": d, "errors": {}}
    for name, (log_of, dist_of) in methods().items():
        row["errors"][name] = {
            "log": float(((log_of(x, y).double() - log).norm(dim=-1) / distance).max()),
            "dist": float(((dist_of(x, y).double() - distance).abs() / distance).max()),
        }
    return row


def main(
    out: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results/geometry.json"),
) -> None:
    """Measure at every angle, print a table, and write the record."""
    torch.set_num_threads(1)
    rows = [measure(angle, d) for d in (3, 784) for angle in ANGLES]
    names = list(rows[0]["errors"])
    print(
        f"{'d':>4} {'angle':>12} " + " ".join(f"{name + ' ' + what:>20}" for name in names for what in ("log", "dist"))
    )
    for row in rows:
        angle = f"{row['angle']:.0e}" if row["angle"] <= 3 else f"pi - {row['pi_minus_angle']:.0e}"
        values = [row["errors"][name][what] for name in names for what in ("log", "dist")]
        print(f"{row['d']:>4} {angle:>12} " + " ".join(f"{value:>20.1e}" for value in values))
    record = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "dtype": "float32",
        "pairs": PAIRS,
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
