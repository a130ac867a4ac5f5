"""Laplace's approximation: its curvature against dense derivatives, and posteriors that are known."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch.nn import functional as F

import coset
from coset import Epoch, Solution
from coset.core.errors import CosetError, ModelError
from coset.data import Split
from coset.inference import curvature, kfac
from coset.inference.curvature import Curvature, output_root
from coset.inference.kfac import damped, kronecker
from coset.inference.laplace import last_layer
from coset.training.network import Network


def classes(f: Tensor) -> Tensor:
    """-log p(y = 0 | f), summed over rows of logits; the target does not matter for the second derivative."""
    return -f.log_softmax(-1)[..., 0].sum()


def gaussian(f: Tensor, noise: float) -> Tensor:
    return f.square().sum() / (2 * noise**2)


def brute(net: nn.Module, inputs: Tensor, noise: float | None) -> Tensor:
    """sum_i J_i^T L_i J_i by dense derivatives of the network and of the loss, over all parameters in their order."""
    named = {name: p.detach() for name, p in net.named_parameters()}

    def loss(f: Tensor) -> Tensor:
        return classes(f) if noise is None else gaussian(f, noise)

    total = torch.zeros(())
    for x in inputs:
        found = jacrev(lambda w, x=x: functional_call(net, w, (x[None],))[0])(named)
        f = functional_call(net, named, (x[None],))[0].detach()
        rows = f.numel()
        j = torch.cat([found[name].reshape(rows, -1) for name in named], 1)
        total = total + j.T @ hessian(loss)(f).reshape(rows, rows) @ j
    return total


class Tied(nn.Module):
    """The same weight at both ends, and logits for each of several tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.embed(x.long())))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, stride=2),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 2, 2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(8, 3),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4,)),
    "conv": (conv, (1, 6, 6)),
    "tied": (Tied, (2,)),
    "in place": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (4,)),
}


def made(name: str, noise: float | None = None, n: int = 7) -> tuple[nn.Module, Curvature]:
    torch.manual_seed(0)
    make, shape = NETS[name]
    net = make().double().eval()
    network = Network(net)
    inputs = torch.rand(n, *shape).double() * 4
    return net, Curvature(network, network.flatten(dict(net.named_parameters())), inputs, noise)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 99), st.sampled_from([None, 0.3]))
def test_root_of_the_outputs_curvature(c: int, t: int, seed: int, noise: float | None) -> None:
    f = torch.randn((t, c), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = hessian(classes if noise is None else lambda f: gaussian(f, noise))(f)
    rows = output_root(f, noise)
    assert torch.allclose(torch.einsum("rab,rcd->abcd", rows, rows), expected, atol=1e-12)


@pytest.mark.parametrize("noise", [None, 0.4])
@pytest.mark.parametrize("name", list(NETS))
def test_curvature_is_the_dense_one(name: str, noise: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    net, found = made(name, noise)
    expected = brute(net, found.inputs, noise)
    names, sizes = found.network.names, [p.numel() for p in net.parameters()]
    for budget in (curvature.BUDGET, 1000, 1):
        monkeypatch.setattr(curvature, "BUDGET", budget)
        assert torch.allclose(found.dense(names), expected)
        diagonal = torch.cat([x.flatten() for x in found.diagonal().values()])
        assert torch.allclose(diagonal, expected.diagonal())
    ends = torch.tensor(sizes).cumsum(0).tolist()
    for k, (block, size) in enumerate(zip(found.blocks(names).values(), sizes, strict=True)):
        part = slice(ends[k] - size, ends[k])
        assert torch.allclose(block, expected[part, part])
    assert torch.allclose(found.dense(names[-1:]), expected[-sizes[-1] :, -sizes[-1] :])


def test_gauss_newton_is_the_hessian_of_a_linear_model() -> None:
    net = nn.Linear(4, 3).double()
    network = Network(net)
    inputs, targets = torch.randn(9, 4).double(), torch.randint(3, (9,))
    weights = network.flatten(dict(net.named_parameters()))

    def loss(w: Tensor) -> Tensor:
        return F.cross_entropy(network(w[None], inputs[None])[0], targets, reduction="sum")

    found = Curvature(network, weights, inputs, None).dense(network.names)
    assert torch.allclose(found, hessian(loss)(weights))


class TestKronecker:
    @pytest.mark.parametrize("name", ["mlp", "in place"])
    def test_exact_for_one_example(self, name: str) -> None:
        _, found = made(name, n=1)
        blocks = found.blocks(found.network.names)
        for name, (g, a) in kronecker(found).items():
            assert torch.allclose(torch.kron(g, a), blocks[name])

    def test_exact_for_linear_regression(self) -> None:
        net = nn.Linear(4, 3).double()
        network, inputs = Network(net), torch.randn(9, 4).double()
        found = Curvature(network, network.flatten(dict(net.named_parameters())), inputs, 0.5)
        (pair,) = kronecker(found).values()
        assert torch.allclose(torch.kron(*pair), found.dense(["weight"]))

    @pytest.mark.parametrize("budget", [2**25, 1])
    def test_convolution_by_hand(self, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Places one by one: the gradient by a place's output, and the patch that it sees."""
        monkeypatch.setattr(kfac, "BUDGET", budget)
        net, found = made("conv")
        assert isinstance(net, nn.Sequential)
        rest = net[1:]
        g_sum, a_sum, places = torch.zeros(3, 3).double(), torch.zeros(9, 9).double(), 0
        for x in found.inputs:
            out = net[0](x[None])[0].detach()
            j = jacrev(lambda o: rest(o.clone()[None])[0])(out)
            f = rest(out.clone()[None])[0].detach()
            curved = hessian(classes)(f)
            padded = F.pad(x, (1, 1, 1, 1))
            for row in range(3):
                for column in range(3):
                    at = j[:, :, row, column]
                    g_sum += at.T @ curved @ at
                    patch = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten()
                    a_sum += patch.outer(patch)
                    places += 1
        g, a = kronecker(found)["0.weight"]
        assert torch.allclose(g, g_sum) and torch.allclose(a, a_sum / places)

    def test_layers_that_share_a_weight_are_all_seen(self) -> None:
        first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        second.weight = first.weight
        network = Network(nn.Sequential(first, nn.Tanh(), second))
        found = Curvature(network, network.flatten(dict(first.named_parameters(prefix="0"))), torch.randn(5, 3), 1.0)
        _, a = kronecker(found)["0.weight"]
        x = found.inputs.double()
        y = torch.tanh(first(found.inputs)).detach().double()
        assert torch.allclose(a, (x.T @ x + y.T @ y) / 10, rtol=1e-5)

    def test_damping(self) -> None:
        """A product of inverses that is never more than the inverse of the sum, and equal to it without curvature."""
        generator = torch.Generator().manual_seed(0)
        g, a = (torch.randn((n, n), generator=generator, dtype=torch.float64) for n in (3, 4))
        g, a, unit = g @ g.T, a @ a.T, torch.eye(12).double()
        exact = torch.linalg.inv(torch.kron(g, a) + 0.7 * unit)
        found = torch.kron(*damped(g, a, 0.7))
        assert torch.linalg.eigvalsh(exact - found).min() > -1e-12
        assert torch.allclose(torch.kron(*damped(100 * g, a / 100, 0.7)), found)
        assert torch.allclose(
            torch.kron(*damped(1e9 * g, a, 0.7)), torch.kron(1e-9 * g.inverse(), a.inverse()), rtol=1e-3
        )
        assert torch.allclose(torch.kron(*damped(0 * g, a, 0.7)), unit / 0.7)

    @pytest.mark.parametrize(
        ("net", "name"),
        [
            (nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(8, 2)), "0.weight"),
            (Tied(), "embed.weight"),
            (nn.Sequential(nn.Unflatten(1, (2, 1, 1)), nn.Conv2d(2, 2, 1, groups=2), nn.Flatten()), "1.weight"),
        ],
    )
    def test_other_matrices_are_refused_before_training(self, net: nn.Module, name: str) -> None:
        data = (torch.zeros(4, 2).long() if "embed" in repr(net).lower() else torch.zeros(4, 2), torch.zeros(4).long())
        if isinstance(net, Tied):
            data = (data[0], torch.zeros(4, 2).long())
        with pytest.raises(ModelError, match=f"'{name}' has no Kronecker factors"):
            coset.fit(net, data, coset.Laplace(hessian="kron"), progress=lambda _: pytest.fail("trained"))


class Branches(nn.Module):
    """What runs last was made first, and one layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.body = nn.Linear(4, 5)
        self.spare = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x)))
        return out


class TestLastLayer:
    def test_it_is_the_last_to_run(self) -> None:
        net = Branches()
        run = lambda: net(torch.zeros(1, 4))  # noqa: E731
        assert last_layer(Network(net), run) == ["head.weight", "head.bias"]
        assert not net.head._forward_hooks
        net.head.bias.requires_grad_(False)
        assert last_layer(Network(net), run) == ["head.weight"]
        net.head.weight.requires_grad_(False)
        assert last_layer(Network(net), run) == ["body.weight", "body.bias"]
        for p in net.body.parameters():
            p.requires_grad_(False)
        with pytest.raises(ModelError, match=r"Branches runs no nn\.Linear that is trained"):
            last_layer(Network(net), run)


@pytest.fixture
def split() -> Split:
    """Three noisy clusters."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (60,), generator=generator)
    centres = 3 * torch.randn(3, 4, generator=generator)
    return Split(centres[targets] + torch.randn(60, 4, generator=generator), targets)


QUICK = coset.MAP(epochs=3, batch_size=20)


def around(q: Solution, net: nn.Module, split: Split, precision: float) -> Tensor:
    """(H + precision I)^-1 at the mean of q, float64."""
    wide = copy.deepcopy(net).double().eval()
    wide.load_state_dict(q.mean)
    h = brute(wide, split.inputs.double(), q.noise)
    return torch.linalg.inv(h + precision * torch.eye(len(h)))


@pytest.mark.parametrize("regression", [False, True])
def test_every_structure_is_the_inverse_of_its_part(split: Split, regression: bool) -> None:
    data = Split(split.inputs, split.inputs[:, :3].sin()) if regression else split
    v = 0.5
    found = {
        h: coset.fit(mlp(), data, coset.Laplace(QUICK, h, v))[0] for h in ("last_layer", "full", "diagonal", "kron")
    }
    (mode,) = coset.fit(mlp(), data, coset.MAP(epochs=3, batch_size=20, weight_decay=1 / (60 * v)))
    for q in found.values():
        assert all(torch.equal(q.mean[name], x) for name, x in mode.mean.items()) and q.noise == mode.noise
    assert (mode.noise is not None) == regression
    net = mlp()
    covariance = around(mode, net, data, 1 / v)
    precision = covariance.inverse()
    full, last, diagonal, kron = (found[h] for h in ("full", "last_layer", "diagonal", "kron"))
    assert isinstance(full, coset.FullGaussian) and torch.allclose(full.covariance, covariance, rtol=1e-3, atol=1e-6)
    assert isinstance(last, coset.FullGaussian) and last.names == ("2.weight", "2.bias")
    assert torch.allclose(last.covariance, precision[-18:, -18:].inverse(), rtol=1e-3, atol=1e-6)
    assert isinstance(diagonal, coset.Gaussian)
    std = torch.cat([diagonal.std[name].flatten() for name in mode.mean])
    assert torch.allclose(std.double(), precision.diagonal().rsqrt(), rtol=1e-4)
    assert isinstance(kron, coset.KroneckerGaussian) and set(kron.factors) == set(mode.mean)
    assert torch.allclose(kron.factors["2.bias"][0], precision[-3:, -3:].inverse(), rtol=1e-3)
    assert 0 < kron.marginal().std["0.weight"].max() <= v**0.5 * (1 + 1e-6)


def test_exact_for_bayesian_linear_regression() -> None:
    """The posterior is Gaussian: precision X^T X / noise^2 + I / v, mean its inverse times X^T y / noise^2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.3 * torch.randn(40, 1, generator=generator).double()
    v, noise = 0.25, 0.3
    base = coset.MAP("sgd", 0.02, epochs=250, batch_size=40, noise=noise)
    net = nn.Linear(3, 1, bias=False).double()
    precision = x.T @ x / noise**2 + torch.eye(3) / v
    mean = precision.inverse() @ x.T @ y / noise**2
    (q,) = coset.fit(net, (x, y), coset.Laplace(base, "full", prior_variance=v))
    assert isinstance(q, coset.FullGaussian) and q.noise == pytest.approx(noise)
    assert torch.allclose(q.mean["weight"].T, mean, atol=1e-6)
    assert torch.allclose(q.covariance, precision.inverse(), rtol=1e-9)
    # The covariance is the same everywhere; weight decay can decide the prior as well.
    decay = coset.MAP(epochs=1, noise=noise, weight_decay=1 / (40 * v))
    (last,) = coset.fit(net, (x, y), coset.Laplace(decay, "last_layer"))
    assert isinstance(last, coset.FullGaussian) and torch.allclose(last.covariance, q.covariance)


def test_batch_norm_and_dropout_are_as_in_evaluation() -> None:
    torch.manual_seed(1)
    split = Split(torch.randn(20, 1, 6, 6), torch.randint(3, (20,)))
    net = conv()
    base = coset.MAP(epochs=2, batch_size=10)
    (q,) = coset.fit(net, split, coset.Laplace(base, "full", 1.0))
    assert isinstance(q, coset.FullGaussian)
    assert torch.allclose(q.covariance, around(q, net, split, 1.0), rtol=1e-2, atol=1e-5)
    (k,) = coset.fit(net, split, coset.Laplace(base, "kron", 1.0))
    assert isinstance(k, coset.KroneckerGaussian) and set(k.factors) == set(dict(net.named_parameters()))


def test_frozen_parameters_are_fixed(split: Split) -> None:
    net = mlp()
    net[0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    for h in ("diagonal", "kron", "full"):
        (q,) = coset.fit(net, split, coset.Laplace(QUICK, h))  # type: ignore[arg-type]
        drawn = q.sample(2, torch.Generator().manual_seed(0))
        assert torch.equal(drawn["0.weight"][0], drawn["0.weight"][1])
        assert not torch.equal(drawn["0.bias"][0], drawn["0.bias"][1])


@pytest.mark.parametrize("h", ["last_layer", "kron"])
def test_stopped_and_resumed_is_uninterrupted(split: Split, tmp_path: Path, h: str) -> None:
    method = coset.Laplace(QUICK, h)  # type: ignore[arg-type]

    def stop(epoch: Epoch) -> None:
        if epoch.epoch == 2 and epoch.replica == 1:
            raise KeyboardInterrupt

    whole = coset.fit(mlp(), split, method, replicas=2)
    with pytest.raises(KeyboardInterrupt):
        coset.fit(mlp(), split, method, replicas=2, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0)
    resumed = coset.fit(mlp(), split, method, replicas=2, out=tmp_path)
    again = coset.fit(mlp(), split, method, replicas=2, out=tmp_path, progress=lambda _: pytest.fail("trained"))
    for a, b, c in zip(whole, resumed, again, strict=True):
        (_, x), (_, y), (_, z) = a.pack(), b.pack(), c.pack()
        assert x.keys() == y.keys() == z.keys()
        assert all(torch.equal(x[name], y[name]) and torch.equal(x[name], z[name]) for name in x)
    with pytest.raises(CosetError, match="another hessian"):
        coset.fit(mlp(), split, coset.Laplace(QUICK, "diagonal"), out=tmp_path)


def test_less_sure_far_away(split: Split) -> None:
    """Far from the data the mode is certain, the last layer's posterior is not."""
    (q,) = coset.fit(mlp(), split, coset.Laplace(coset.MAP(rate=0.02, epochs=20, batch_size=20)))
    near, far = split.inputs, 10 * split.inputs
    for inputs, least in ((near, 0.01), (far, 0.02)):
        sure = coset.predict(coset.Dirac(q.mean), mlp(), inputs).exp().amax(-1).mean()
        assert coset.predict(q, mlp(), inputs).exp().amax(-1).mean() < sure - least
    assert coset.evaluate(q, mlp(), split).accuracy > 0.8


class Uncharted(nn.Module):
    """An op with data-dependent control flow, which cannot be run for many examples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out if out.sum().item() < 1e9 else -out


def test_refusals(split: Split) -> None:
    with pytest.raises(
        CosetError, match="Laplace: hessian must be last_layer or full or diagonal or kron, not 'exact'"
    ):
        coset.Laplace(hessian="exact")  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="prior_variance must be positive"):
        coset.Laplace(prior_variance=0.0)
    with pytest.raises(CosetError, match="without weight decay there is no prior: give prior_variance"):
        coset.Laplace(coset.MAP(weight_decay=0.0))
    coset.Laplace(coset.MAP(weight_decay=0.0), prior_variance=1.0)
    with pytest.raises(ModelError, match="The curvature of Uncharted cannot be computed example by example"):
        coset.fit(Uncharted(), split, coset.Laplace(QUICK, "diagonal"), progress=lambda _: pytest.fail("trained"))
    wide = nn.Sequential(nn.Linear(4, 5000), nn.Linear(5000, 3))
    with pytest.raises(CosetError, match="40,003 coordinates is too large"):
        coset.fit(wide, split, coset.Laplace(QUICK, "full"), progress=lambda _: pytest.fail("trained"))
