"""Flows learned by captured steps are those learned step by step. Needs a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import capture
from coset.data import Split
from coset.flow import matching, solvers
from coset.flow.flow import Flow
from coset.flow.matching import Matching
from coset.flow.velocity_network import Architecture
from coset.populations.population import Population

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

QUICK = Matching(epochs=3, batch_size=32, rate=1e-3, warm_up=2)
CASES = {
    "plain": ("mlp:3-4-2", "euclidean", "training", QUICK),
    "adam": ("mlp:3-4-2", "euclidean", "training", replace(QUICK, optimizer="adam")),
    "outputs": ("mlp:3-4-2", "geometric", "training", QUICK),
    "transport": ("mlp:3-4-2", "geometric", "ot", replace(QUICK, noise=0.01, times="beta")),
    "one step": ("mlp:3-4-2", "euclidean", "training", replace(QUICK, epochs=1, batch_size=128)),
    "deep": ("mlp:3-4-4-2", "normalized", "independent", replace(QUICK, level=True)),
}


def trained(model: torch.nn.Module) -> Population:
    generator = torch.Generator().manual_seed(0)
    starts = {name: torch.randn(128, *x.shape, generator=generator) for name, x in model.state_dict().items()}
    return Population({name: 3 * x for name, x in starts.items()}, starts)


@pytest.mark.parametrize("case", CASES)
def test_the_same_flow_as_step_by_step(
    case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec, geometry, coupling, settings = CASES[case]
    model = zoo.build(spec)
    sym = coset.symmetry(model, zoo.example_input(model))
    generator = torch.Generator().manual_seed(1)
    split = Split(torch.randn(64, 3, generator=generator), torch.randint(2, (64,), generator=generator))

    def outcome() -> dict[str, Tensor]:
        architecture = Architecture(width=32, depth=2, heads=2)
        flow = Flow(sym, geometry, coupling, architecture=architecture)  # type: ignore[arg-type]
        options = {"model": zoo.build(spec), "data": split} if case == "outputs" else {}
        flow.fit(trained(model), settings, device="cuda", **options)  # type: ignore[arg-type]
        return flow.sample(8, 8, noise=0.1, generator=torch.Generator("cuda").manual_seed(0)).states

    with caplog.at_level("INFO", logger=capture.__name__):
        fast = outcome()
    assert "cannot be captured" not in caplog.text
    for module in (matching, solvers):
        monkeypatch.setattr(module, "captured", lambda step, *rest: step)
    slow = outcome()
    for name, x in slow.items():
        assert torch.allclose(fast[name], x, rtol=1e-3, atol=1e-4), name


def test_guided_samples_and_densities_are_those_of_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("mlp:3-4-2").cuda()
    sym = coset.symmetry(zoo.build("mlp:3-4-2"), zoo.example_input(model))
    flow = Flow(sym, architecture=Architecture(width=32, depth=2, heads=2))
    flow.fit(trained(zoo.build("mlp:3-4-2")), QUICK, device="cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    split = Split(
        torch.randn(64, 3, generator=generator, device="cuda"),
        torch.randint(2, (64,), generator=generator, device="cuda"),
    )

    def outcome() -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        seeds = [torch.Generator("cuda").manual_seed(0) for _ in range(2)]
        guided = flow.sample(8, 8, guidance=coset.Guidance(model, split, 1.0, 16), generator=seeds[0])
        samples, logs = flow.sample_with_log_prob(8, 8, generator=seeds[1])
        return guided.states, samples.states, logs

    fast = outcome()
    monkeypatch.setattr(solvers, "captured", lambda step, *rest: step)
    slow = outcome()
    for one, other in zip(fast[:2], slow[:2], strict=True):
        for name, x in other.items():
            assert torch.allclose(one[name], x, rtol=1e-3, atol=1e-4), name
    assert torch.allclose(fast[2], slow[2], rtol=1e-3, atol=1e-3)
