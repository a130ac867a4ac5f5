"""Hamiltonian Monte Carlo on Snelson's set: a network 1-50-1 with tanh, prior N(0, 1), known noise.

With --numpyro, which needs numpyro, NUTS samples the same posterior, and so does its HMC with as many steps: the
predictions must agree. Seconds are of whole runs, with the warm-up, and for numpyro with compilation.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import coset
from bench.record import device_name, versions
from coset import data
from coset.cli.options import DeviceOption
from coset.core.files import write_json

UNITS, NOISE = 50, 0.3


@dataclass(frozen=True)
class ChainSettings:
    """How many chains, how many draws of each after the warm-up, and leapfrog steps of a draw."""

    chains: int
    draws: int
    warm_up: int
    steps: int
    device: str


def main(
    device: DeviceOption = "cpu",
    numpyro: Annotated[bool, typer.Option("--numpyro", help="Also sample by numpyro.")] = False,
    chains: Annotated[int, typer.Option(help="ChainSettings side by side.", min=1)] = 4,
    draws: Annotated[int, typer.Option(help="Draws of each chain.", min=1)] = 500,
    warm_up: Annotated[int, typer.Option(help="Draws before those.", min=0)] = 500,
    steps: Annotated[int, typer.Option(help="Leapfrog steps of a draw.", min=1)] = 128,
    out: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results/hmc-snelson.json"),
) -> None:
    """Sample, compare, and write the record."""
    snelson, options = data.load("snelson"), ChainSettings(chains, draws, warm_up, steps, device)
    grid = snelson.test.inputs
    runs = {"coset HMC": ours(snelson.train, grid, options)}
    if numpyro:
        runs["numpyro HMC"] = theirs(snelson.train, grid, options, nuts=False)
        runs["numpyro NUTS"] = theirs(snelson.train, grid, options, nuts=True)
    whole: dict[str, Any] = {
        "model": f"1-{UNITS}-1 tanh", "data": "snelson", "noise": NOISE, "prior variance": 1.0,
        "chains": chains, "draws": draws, "warm-up": warm_up, "steps": steps,
        "inputs": grid.flatten().tolist(), "runs": {name: record for name, (record, _) in runs.items()},
        "agreement": {name: agreement(runs["coset HMC"][1], x) for name, (_, x) in runs.items() if name[0] == "n"},
        "device": device_name(device), "versions": versions(),
    }  # fmt: skip
    brief = {name: {k: v for k, v in run.items() if not isinstance(v, list)} for name, run in whole["runs"].items()}
    print(json.dumps({"runs": brief, "agreement": whole["agreement"]}, indent=1))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, whole)


def make() -> nn.Module:
    """The network."""
    return nn.Sequential(nn.Linear(1, UNITS), nn.Tanh(), nn.Linear(UNITS, 1))


def ours(train: data.Split, grid: Tensor, options: ChainSettings) -> tuple[dict[str, Any], Tensor]:
    """`coset.HMC`."""
    method = coset.HMC(options.chains, options.draws, options.warm_up, options.steps, noise=NOISE)
    accepted: list[float] = []
    divergences: dict[int, float] = {}

    def see(epoch: Any) -> None:
        if epoch.epoch > options.warm_up:
            accepted.append(epoch.more["acceptance"])
            divergences[epoch.copy] = epoch.more["divergences"]

    start = time.perf_counter()
    (q,) = coset.fit(make(), train, method, device=options.device, progress=coset.on_epoch(see))
    seconds = time.perf_counter() - start
    assert isinstance(q, coset.Ensemble)
    outputs = predictions(q.to("cpu").population, grid, options.chains)
    more = {"acceptance": sum(accepted) / len(accepted), "divergences": sum(divergences.values())}
    return record(outputs, seconds) | more, outputs


def theirs(train: data.Split, grid: Tensor, options: ChainSettings, *, nuts: bool) -> tuple[dict[str, Any], Tensor]:
    """numpyro's NUTS, as it comes, or its HMC with as many steps and unit mass."""
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]
    import numpyro  # type: ignore[import-not-found]
    from numpyro import distributions as dist
    from numpyro.infer import HMC, MCMC, NUTS  # type: ignore[import-not-found]

    numpyro.set_platform("cpu" if options.device == "cpu" else "gpu")
    x, y = (jnp.asarray(tensor.numpy()) for tensor in train)
    shapes = {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()}

    def model() -> None:
        w = {name: numpyro.sample(name, dist.Normal(0, 1).expand(shape)) for name, shape in shapes.items()}
        hidden = jnp.tanh(x @ w["0.weight"].T + w["0.bias"])
        numpyro.sample("y", dist.Normal(hidden @ w["2.weight"].T + w["2.bias"], NOISE), obs=y)

    length = {"adapt_step_size": True, "adapt_mass_matrix": False, "trajectory_length": None}
    kernel = NUTS(model) if nuts else HMC(model, num_steps=options.steps, **length)
    mcmc = MCMC(
        kernel, num_warmup=options.warm_up, num_samples=options.draws, num_chains=options.chains,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    start = time.perf_counter()
    mcmc.run(jax.random.PRNGKey(0), extra_fields=("accept_prob", "diverging", "num_steps"))
    samples = mcmc.get_samples(group_by_chain=True)
    jax.block_until_ready(samples)
    seconds = time.perf_counter() - start
    population = {name: torch.tensor(samples[name].tolist()).flatten(0, 1) for name in shapes}
    outputs = predictions(population, grid, options.chains)
    fields = {name: torch.tensor(x.tolist()).float() for name, x in mcmc.get_extra_fields().items()}
    return record(outputs, seconds) | {
        "acceptance": fields["accept_prob"].mean().item(),
        "divergences": fields["diverging"].sum().item(),
        "steps": fields["num_steps"].mean().item(),
    }, outputs


def predictions(population: dict[str, Tensor], grid: Tensor, chains: int) -> Tensor:
    """f(x; w) on the grid, (chains, draws, points) float64."""
    hidden = torch.tanh(grid @ population["0.weight"].mT + population["0.bias"][:, None])
    outputs = hidden @ population["2.weight"].mT + population["2.bias"][:, None]
    return outputs.double().view(chains, -1, len(grid))


def record(outputs: Tensor, seconds: float) -> dict[str, Any]:
    """Moments and diagnostics of predictions."""
    r_hat, ess = coset.r_hat(outputs), coset.ess(outputs)
    return {
        "mean": outputs.mean((0, 1)).tolist(),
        "std": outputs.flatten(0, 1).std(0).tolist(),
        "seconds": seconds,
        "largest R-hat": r_hat.max().item(),
        "median R-hat": r_hat.median().item(),
        "smallest ESS": ess.min().item(),
        "median ESS": ess.median().item(),
        "milliseconds per smallest ESS": 1000 * seconds / ess.min().item(),
        "milliseconds per median ESS": 1000 * seconds / ess.median().item(),
    }


def agreement(a: Tensor, b: Tensor) -> dict[str, float]:
    """Differences of the predictive moments, the means' in their standard errors: about 1 if they agree."""
    means, stds = zip(*((x.mean((0, 1)), x.flatten(0, 1).std(0)) for x in (a, b)), strict=True)
    error = sum(std.square() / coset.ess(x) for std, x in zip(stds, (a, b), strict=True))
    return {
        "root mean square difference of means, in standard errors": (
            (means[0] - means[1]).square().div(error).mean().sqrt().item()
        ),
        "largest difference of means": (means[0] - means[1]).abs().max().item(),
        "largest ratio of deviations": (stds[0] / stds[1]).log().abs().max().exp().item(),
    }
