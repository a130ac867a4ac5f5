"""The symmetrized solution against sums over the whole group."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Symmetry, symmetry, zoo
from coset.core import state as states
from coset.core.errors import CosetError


def posterior(name: str, spread: float) -> tuple[nn.Module, coset.Gaussian, Symmetry]:
    net = zoo.build(name)
    torch.manual_seed(0)
    mean = {n: spread * torch.randn(x.shape, dtype=torch.float64) for n, x in net.state_dict().items()}
    std = {n: 0.5 + torch.rand_like(x) for n, x in mean.items()}
    return net, coset.Gaussian(mean, std), symmetry(net, zoo.example_input(net, 2))


def all_images(state: states.State, sym: Symmetry) -> list[dict[str, Tensor]]:
    """The state under many random elements, which are all of a small group."""
    g = sym.random(torch.Generator().manual_seed(0), batch=3000)
    shifted = sym.act(g, state)
    rows = torch.cat([x.flatten(1) for x in shifted.values()], 1)
    _, first = torch.unique(rows, dim=0, return_inverse=True)
    keep = {int(label): k for k, label in enumerate(first)}
    return [{n: x[k] for n, x in shifted.items()} for k in keep.values()]


@pytest.mark.parametrize("name", ["mlp:2-4-1", "mlp:1-3-2-1"])
def test_density(name: str) -> None:
    _, q, sym = posterior(name, 0.5)
    both = coset.Symmetrized(q, sym)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(1)))[0]
    images = all_images(state, sym)
    assert len(images) == round(math.exp(sym.log_order))
    expected = torch.stack([q.log_prob(image) for image in images]).logsumexp(0) - sym.log_order
    assert float(both.log_prob(state)) == pytest.approx(float(expected), abs=1e-9)
    assert float(both.log_prob(images[-1])) == pytest.approx(float(expected), abs=1e-9)


def test_density_of_a_large_group_is_estimated() -> None:
    _, q, sym = posterior("mlp:2-20-1", 0.5)
    both = coset.Symmetrized(q, sym)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(1)))[0]
    shifted = sym.act(sym.random(torch.Generator().manual_seed(2)), state)
    low = float(q.log_prob(state) - sym.log_order)
    assert low < float(both.log_prob(state)) and float(both.log_prob(shifted)) == pytest.approx(
        float(both.log_prob(state)), abs=1.0
    )


def test_mean_is_that_of_samples_and_fixed_by_the_group() -> None:
    _, q, sym = posterior("mlp:2-4-3-1", 2.0)
    both = coset.Symmetrized(q, sym)
    assert states.allclose(sym.act(sym.random(torch.Generator().manual_seed(0)), both.mean), both.mean)
    samples = both.sample(20000, torch.Generator().manual_seed(0))
    for n, x in samples.items():
        assert torch.allclose(x.mean(0), both.mean[n], atol=5 * float(x.std(0).max()) / math.sqrt(20000))


def test_entropy_is_minus_the_mean_log_density() -> None:
    _, q, sym = posterior("mlp:1-3-1", 0.7)
    both = coset.Symmetrized(q, sym)
    samples = states.unstack(both.sample(600, torch.Generator().manual_seed(3)))
    logs = torch.stack([both.log_prob(state) for state in samples])
    assert float(both.entropy()) == pytest.approx(-float(logs.mean()), abs=4 * float(logs.std()) / math.sqrt(600))
    assert float(q.entropy()) <= float(both.entropy()) <= float(q.entropy()) + sym.log_order + 1e-9


def test_push_by_a_permutation_is_the_same_distribution() -> None:
    _, q, sym = posterior("mlp:2-4-1", 0.5)
    both = coset.Symmetrized(q, sym)
    shifted = sym.act(sym.random(torch.Generator().manual_seed(4)), both)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(1)))[0]
    assert float(shifted.log_prob(state)) == pytest.approx(float(both.log_prob(state)), abs=1e-9)
    assert states.allclose(shifted.mean, both.mean)


def test_predictions_are_those_of_q() -> None:
    net, q, sym = posterior("mlp:2-4-3", 0.5)
    x = torch.randn(5, 2, dtype=torch.float64)
    net = net.double()
    assert torch.equal(coset.predict(coset.Symmetrized(q, sym), net, x), coset.predict(q, net, x))


def test_save_and_load(tmp_path: Path) -> None:
    _, q, sym = posterior("mlp:2-4-1", 0.5)
    both = coset.Symmetrized(q, sym)
    both.save(tmp_path / "q.safetensors")
    again = coset.load(tmp_path / "q.safetensors")
    assert isinstance(again, coset.Symmetrized) and isinstance(again.q, coset.Gaussian)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(1)))[0]
    assert float(again.log_prob(state)) == pytest.approx(float(both.log_prob(state)), abs=1e-12)


def test_refusals() -> None:
    _, q, sym = posterior("mlp:2-4-1", 0.5)
    points = coset.Symmetrized(coset.Dirac(q.mean), sym)
    assert states.size(points.sample(3, torch.Generator().manual_seed(0))) == 3
    with pytest.raises(CosetError, match="symmetrized Dirac is not known"):
        points.log_prob(q.mean)
    with pytest.raises(CosetError, match=r"'layers\.1\.weight', which the solution does not have"):
        coset.Symmetrized(coset.Dirac({n: x for n, x in q.mean.items() if n != "layers.1.weight"}), sym)


def test_it_has_no_place_to_align_or_to_draw() -> None:
    net, q, sym = posterior("mlp:2-4-3", 0.5)
    both = coset.Symmetrized(q, sym)
    with pytest.raises(CosetError, match="it has no place of its own: give its q"):
        coset.align(q, both, sym)
    with pytest.raises(CosetError, match="it has no place of its own: give its q"):
        coset.align_many([q, both], sym)
    with pytest.raises(CosetError, match="it has no place of its own: give its q"):
        coset.plane(q, both, q, net, (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)))
