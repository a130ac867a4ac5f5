"""The curvature of coset.Laplace beside that of laplace-torch, on small networks.

Needs laplace-torch, which brings torchvision: install it in an environment of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from coset.core.files import write_json
from coset.inference.curvature import Curvature
from coset.inference.kfac import kronecker
from coset.training.network import Network

NOISE, EXAMPLES = 0.3, 60


def nets() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Name, network with three outputs, inputs; all in float64."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    conv = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 3))
    yield "mlp", mlp.double(), torch.randn(EXAMPLES, 5, dtype=torch.float64)
    yield "conv", conv.double(), torch.randn(EXAMPLES, 2, 6, 6, dtype=torch.float64)


def theirs(net: nn.Module, kind: str, loader: Any, subset: str, structure: str, backend: type) -> Any:
    """The curvature that laplace-torch finds, for a noise of one, without a prior."""
    import laplace

    net = copy.deepcopy(net)  # a backend leaves hooks in it
    model = laplace.Laplace(net, kind, subset_of_weights=subset, hessian_structure=structure, backend=backend)
    model.fit(loader)
    return model.H_facs if structure == "kron" else model.H


def difference(ours: Tensor, other: Tensor) -> float:
    """The largest difference of two entries over the largest entry."""
    return float((ours - other).abs().max() / other.abs().max())


def compare(net: nn.Module, inputs: Tensor, kind: str) -> dict[str, float]:
    """The difference of each structure."""
    from laplace.curvature import BackPackGGN, CurvlinopsGGN

    noise = NOISE if kind == "regression" else None
    # The curvature of a regression goes with 1 / noise^2, of which laplace-torch's has none.
    factor = 1.0 if noise is None else 1 / noise**2
    targets = torch.randn(EXAMPLES, 3).double() if noise else torch.randint(3, (EXAMPLES,))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=EXAMPLES)
    network = Network(net.eval())
    curvature = Curvature(network, network.flatten(dict(net.named_parameters())), inputs, noise)
    diagonal = torch.cat([x.flatten() for x in curvature.diagonal().values()])
    differences = {
        "diagonal": difference(diagonal, factor * theirs(net, kind, loader, "all", "diag", BackPackGGN)),
        "full": difference(
            curvature.dense(network.names), factor * theirs(net, kind, loader, "all", "full", BackPackGGN)
        ),
        "last_layer": difference(
            curvature.dense(network.names[-2:]), factor * theirs(net, kind, loader, "last_layer", "full", BackPackGGN)
        ),
    }
    factors = [pair for pair in theirs(net, kind, loader, "all", "kron", CurvlinopsGGN).kfacs if len(pair) == 2]
    differences["kron"] = max(
        difference(torch.kron(*mine), factor * torch.kron(*pair))
        for mine, pair in zip(kronecker(curvature).values(), factors, strict=True)
    )
    return differences


def main(
    out: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results/laplace-oracle.json"),
) -> None:
    """Compare every structure on both networks, and write the record."""
    rows = [
        {"net": name, "likelihood": kind, **compare(net, inputs, kind)}
        for name, net, inputs in nets()
        for kind in ("classification", "regression")
    ]
    for row in rows:
        print(row)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"measure": difference.__doc__, "examples": EXAMPLES, "rows": rows})
