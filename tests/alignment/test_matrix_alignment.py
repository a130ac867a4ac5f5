"""Alignment by matrices: hidden elements of the whole group come back, block solves are exact, ascent rises."""

from __future__ import annotations

import functools

import pytest
import torch
from alignment_nets import SPECS, random_state
from torch import Tensor, nn

import coset
from coset import Symmetry, zoo
from coset.alignment.balance import balance
from coset.alignment.coordinate_ascent import maximise
from coset.alignment.matrix_blocks import best_matrices, with_permutations
from coset.alignment.objective import InnerProduct, Objective
from coset.core import state as states
from coset.core.state import State
from coset.data import Split
from coset.symmetries.matrix_action import haar


class Adapted(nn.Module):
    """A frozen map with a low-rank one beside it, as LoRA has, in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.base, self.out = nn.Linear(6, 12), nn.Linear(12, 20), nn.Linear(20, 3)
        self.down, self.up = nn.Linear(12, 4, bias=False), nn.Linear(4, 20, bias=False)
        self.norm = nn.RMSNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.embed(x))
        return self.out((self.base(h) + 0.5 * self.up(self.down(h))).relu())


class Latent(nn.Module):
    """Keys and values from a normed bottleneck, as latent attention has; heads with a map of their own inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q = nn.Linear(6, 12), nn.Linear(12, 12, bias=False)
        self.down, self.norm = nn.Linear(12, 5, bias=False), nn.RMSNorm(5)
        self.k, self.v = nn.Linear(5, 12, bias=False), nn.Linear(5, 12, bias=False)
        self.o, self.out = nn.Linear(12, 12, bias=False), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        latent = self.norm(self.down(h))
        q, k, v = (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in (self.q(h), self.k(latent), self.v(latent)))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(h + self.o(y))


FAMILIES = {
    "gpt": "gpt:dim=16,depth=2,heads=2,tied=false",
    "gpt tied": SPECS["gpt"],
    "gpt rms": "gpt:dim=16,depth=2,heads=2,tied=false,norm=rms",
    "llama": "gpt:dim=16,depth=2,heads=4,kv_heads=2,rope=true,swiglu=true,norm=rms,tied=false",
    "vit": "vit:dim=16,depth=2,heads=2,patch=16",
}


@functools.cache
def family(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Symmetry]:
    torch.manual_seed(0)
    if name in FAMILIES:
        model = zoo.build(FAMILIES[name]).eval()
        args = zoo.example_input(model)
    else:
        model = {"lora": Adapted, "latent": Latent}[name]().eval()
        args = (torch.randn(5, 6),) if name == "lora" else (torch.randn(2, 5, 6),)
    return model, args, coset.symmetry(model, args)


def folded(name: str, seed: int = 0) -> dict[str, Tensor]:
    model, _, sym = family(name)
    return coset.fold(random_state(model, seed), sym)


def apart(a: State, b: State) -> float:
    squares = [(float((a[n] - b[n]).double().square().sum()), float(a[n].double().square().sum())) for n in a]
    return (sum(x for x, _ in squares) / sum(y for _, y in squares)) ** 0.5


@pytest.mark.parametrize("name", [*FAMILIES, "lora", "latent"])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_a_hidden_element_of_the_whole_group_comes_back(name: str, noise: float) -> None:
    model, args, sym = family(name)
    a, other = folded(name), random_state(model, 7)
    gains = {gain for group in sym.matrices for gain in group.gains}
    near = {n: x if n in gains or not noise else x + noise * x.std() * other[n] for n, x in a.items()}
    b = sym.act(sym.random(torch.Generator().manual_seed(3), matrices=True), near)
    match = coset.align(a, b, sym)
    image = sym.act(match.element, b)
    assert apart(a, b) > 0.5
    assert apart(a, image) < max(1e-5, 1.2 * apart(a, near))
    outputs = [states.call(model, state, args) for state in (b, image)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_ascent_rises_and_is_never_worse(name: str) -> None:
    _, _, sym = family(name)
    a, b = folded(name, 0), folded(name, 1)
    objective = Objective(sym, [InnerProduct(a, b)])
    match = maximise(objective, restarts=2)
    assert list(match.history) == sorted(match.history)
    assert match.objective == pytest.approx(objective.value(match.element), rel=1e-5)
    plain = maximise(Objective(sym.without_matrices(), [InnerProduct(a, b)]))
    assert match.objective > plain.objective > match.identity_objective


def test_best_matrices_are_best() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    many = haar(torch.randn(4000, 1, 4, 4, generator=generator, dtype=torch.float64))
    for kind in ("orthogonal", "linear", "centred"):
        values, best = best_matrices(kind, scores)  # type: ignore[arg-type]
        torch.testing.assert_close((best * scores).sum((-2, -1)), values)
        torch.testing.assert_close(best @ best.mT, torch.eye(4, dtype=torch.float64).expand(3, 4, 4))
        others = many if kind != "centred" else _about_ones(many)
        assert bool(((others * scores).sum((-2, -1)) <= values + 1e-9).all())
        if kind == "centred":
            torch.testing.assert_close(best.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    pairs = torch.randn(3, 5, 2, 2, generator=generator, dtype=torch.float64)
    values, turns = best_matrices("phase", pairs)
    angles = torch.linspace(0, 6.3, 2000, dtype=torch.float64)
    every = (
        angles.cos() * (pairs[..., 0, 0] + pairs[..., 1, 1])[..., None]
        + angles.sin() * (pairs[..., 1, 0] - pairs[..., 0, 1])[..., None]
    )
    torch.testing.assert_close(every.amax(-1).sum(-1), values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((turns * pairs).sum((-3, -2, -1)), values)


def _about_ones(q: Tensor) -> Tensor:
    """Orthogonal matrices that fix ones, from others: a rotation of the complement, by the polar factor."""
    n = q.shape[-1]
    keep = torch.eye(n, dtype=q.dtype) - 1 / n
    u, _, v = torch.linalg.svd(keep @ q @ keep + torch.ones(n, n, dtype=q.dtype))
    return u @ v


def test_balanced_networks_differ_by_rotations() -> None:
    _, _, sym = family("gpt tied")
    a = {name: x.double() for name, x in folded("gpt tied").items()}
    g = sym.random(torch.Generator().manual_seed(0), matrices=True)
    b = sym.act(sym.element(matrices=g.matrices), a)
    first, second = (sym.act(balance(x, sym), x) for x in (a, b))
    key = "blocks.0.attention.key.weight"
    moments = [x[key].T @ x[key] for x in (first, second)]
    torch.testing.assert_close(moments[0], moments[1], rtol=1e-6, atol=1e-8)
    again = balance(first, sym)
    for m in again.matrices.values():
        torch.testing.assert_close(m, torch.eye(m.shape[-1], dtype=m.dtype).expand(m.shape), rtol=0, atol=1e-6)


def test_matrices_that_reorder_are_permutations() -> None:
    _, _, sym = family("gpt")
    g = sym.random(torch.Generator().manual_seed(0))
    assert with_permutations(g).permutations.keys() == g.permutations.keys()
    group = next(group for group in sym.matrices if group.over)
    order = torch.stack([torch.randperm(group.size) for _ in range(group.copies)])
    m = nn.functional.one_hot(order, group.size).double()
    both = with_permutations(sym.element(g.permutations, matrices={group.name: m}))
    assert not both.matrices
    state = folded("gpt")
    expected = sym.act(sym.element(g.permutations, matrices={group.name: m}), state)
    assert states.allclose(sym.act(both, state), expected)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_activations_find_a_hidden_element(name: str) -> None:
    model, _, sym = family(name)
    a = folded(name)
    b = sym.act(sym.random(torch.Generator().manual_seed(3), matrices=True), a)
    tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(0))
    match = coset.align(a, b, sym, "activations", model, Split(tokens, tokens[:, 0]))
    stream = next(group for group in sym.matrices if group.gains)
    image = sym.act(match.element, b)
    assert apart({"embedding.weight": a["embedding.weight"]}, image) < 1e-2, stream
    down = "blocks.0.mlp.down.weight"
    assert apart({down: a[down]}, image) < 1e-2


def test_merge_folds_and_turns() -> None:
    model, args, sym = family("llama")
    a = random_state(model, 0)
    b = sym.act(sym.random(torch.Generator().manual_seed(3), matrices=True), coset.fold(a, sym))
    merged = coset.merge([a, b], sym)
    expected = states.call(model, a, args)
    torch.testing.assert_close(states.call(model, merged.mean, args), expected, rtol=1e-2, atol=1e-3)


def test_gaussians_are_permuted_only() -> None:
    _, _, sym = family("gpt")
    p, q = (coset.Gaussian(folded("gpt", k), {n: torch.full_like(x, 0.1) for n, x in folded("gpt", k).items()})
            for k in (0, 1))  # fmt: skip
    match = coset.align(p, q, sym)
    assert not match.element.matrices and match.objective > match.identity_objective


def test_unfolded_networks_match_what_they_can() -> None:
    model, _, sym = family("gpt")
    a, b = random_state(model, 0), random_state(model, 1)
    match = coset.align(a, b, sym)
    assert match.element.matrices and not any(
        group.gains for group in sym.matrices if group.name in match.element.matrices
    )
