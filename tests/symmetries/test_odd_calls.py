"""Odd ops, arguments and results: none refuses a model, and each fixes what it touches and nothing more."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin
from oracle import deviation, expect, randomise, signature
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

import coset
from coset import SymmetryError

Forward = Callable[..., Any]


def small(forward: Forward, **parts: nn.Module | Tensor) -> Net:
    """A hidden layer of 6 units unless other parts are given."""
    return Net(forward, **{"a": lin(4, 6), "b": lin(6, 3), **parts})


def groups(forward: Forward, *args: Any, **parts: nn.Module | Tensor) -> str:
    """The sizes of the groups, where a rule covers every op."""
    sym = coset.symmetry(small(forward, **parts), args or (torch.randn(5, 4),), strict=True)
    return " ".join(sorted(signature(sym).elements()))


def moving(forwards: dict[str, Forward]) -> set[str]:
    """Of which of several nets, whose results are summed up, the hidden units move."""
    together = nn.ModuleDict({name: small(forward) for name, forward in forwards.items()})
    model = Net(lambda m, x: sum(net(x).reshape(len(x), -1).sum(1) for net in m.nets.values()), nets=together)
    sym = coset.symmetry(model, torch.randn(5, 4), strict=True)
    return {group.name.split(".")[1] for group in sym.groups if group.name.endswith(".a")}


NOISE_ALONG_UNITS: dict[str, Forward] = {
    "rand": lambda m, x: m.b(m.a(x).relu() + torch.rand(6)),
    "randn_like": lambda m, x: m.b(m.a(x) + torch.randn_like(m.a(x))),
    "uniform_": lambda m, x: m.b(m.a(x) * torch.zeros_like(m.a(x)).uniform_()),
    "exponential_": lambda m, x: m.b(m.a(x) * torch.empty(5, 6).exponential_()),
    "bernoulli": lambda m, x: m.b(m.a(x).sigmoid().bernoulli()),
    "bernoulli_p": lambda m, x: m.b(m.a(x) * m.a(x).bernoulli(0.5)),
    "normal": lambda m, x: m.b(torch.normal(m.a(x), m.a(x).exp())),
    "poisson": lambda m, x: m.b(torch.poisson(m.a(x).exp())),
    "dropout": lambda m, x: m.b(F.dropout(m.a(x), 0.3, training=True)),
    "alpha_dropout": lambda m, x: m.b(F.alpha_dropout(m.a(x), 0.3, training=True)),
    "rrelu": lambda m, x: m.b(F.rrelu(m.a(x), training=True)),
    "gumbel": lambda m, x: m.b(F.gumbel_softmax(m.a(x), hard=True)),
    "multinomial": lambda m, x: m.b.weight.T[m.a(x).softmax(-1).multinomial(2)].sum(1) + m.b.bias,
    "rsample": lambda m, x: m.b(Normal(m.a(x), m.a(x).exp()).rsample()),
}
NOISE_ELSEWHERE: dict[str, Forward] = {
    "rand": lambda m, x: m.b(m.a(x).relu()) + torch.rand(3),
    "randn": lambda m, x: m.b(m.a(x).relu() * torch.randn(len(x), 1)),
    "bernoulli_": lambda m, x: m.b(m.a(x).relu() * x.new_empty(len(x), 1).bernoulli_(0.8)),
    "dropout": lambda m, x: m.b(m.a(F.dropout(x, 0.3, training=True)).relu()),
    "no_dropout": lambda m, x: m.b(F.dropout(m.a(x).relu(), 0.3, training=False)),
    "randperm": lambda m, x: m.b(m.a(x[torch.randperm(len(x))]).relu()),
    "policy": lambda m, x: (d := Categorical(logits=m.b(m.a(x).relu()))).log_prob(d.sample()),
    "entropy": lambda m, x: Categorical(logits=m.b(m.a(x).relu())).entropy(),
}


def test_units_that_numbers_are_drawn_for_do_not_move() -> None:
    """Those beside random numbers do."""
    along = {f"along {op}": forward for op, forward in NOISE_ALONG_UNITS.items()}
    assert moving(NOISE_ELSEWHERE | along) == NOISE_ELSEWHERE.keys()


def test_heads_whose_attention_drops_out_do_not_move() -> None:
    """The mask is drawn for heads and pairs of tokens; the inner units of heads are free, in each head apart."""

    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 3)).transpose(1, 2) for layer in (m.q, m.k, m.v))
        return m.b(F.scaled_dot_product_attention(q, k, v, dropout_p=0.2).transpose(1, 2).flatten(-2))

    parts = {"q": lin(4, 6), "k": lin(4, 6), "v": lin(4, 6), "a": nn.Identity()}
    sym = coset.symmetry(small(forward, **parts), torch.randn(2, 5, 4))
    assert signature(sym) == expect("3/2*2")


def test_a_vae_that_samples() -> None:
    def forward(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        h = m.a(x).relu()
        mean, spread = m.mean(h), m.spread(h)
        return m.b(m.d(mean + torch.randn_like(mean) * spread.exp()).relu()), mean

    assert groups(forward, a=lin(4, 5), mean=lin(5, 2), spread=lin(5, 2), d=lin(2, 6)) == "5 6"


@dataclasses.dataclass
class Record:
    y: Any
    name: str = "record"


class Plain:
    def __init__(self, y: Any) -> None:
        self.y, self.count, self.itself = y, 3, self


class Slotted:
    __slots__ = ("missing", "y")

    def __init__(self, y: Any) -> None:
        self.y = y


def yielding(m: Net, x: Tensor) -> Iterator[Tensor]:
    h = m.a(x)
    yield m.b(h.relu())
    yield m.b(h.tanh())


RESULTS: dict[str, Forward] = {
    "dataclass": lambda m, x: Record(m.b(m.a(x).relu())),
    "object": lambda m, x: Plain([Plain(m.b(m.a(x).relu())), {"k": Plain(None)}]),
    "slots": lambda m, x: Slotted(m.b(m.a(x).relu())),
    "namespace": lambda m, x: types.SimpleNamespace(y=m.b(m.a(x).relu())),
    "distribution": lambda m, x: Normal(m.b(m.a(x).relu()), m.b(m.a(x).relu()).exp()),
    "generator": yielding,
    "map": lambda m, x: map(m.b, [m.a(x).relu()]),
    "views": lambda m, x: ({1: m.b(m.a(x).relu())}.values(), {"a": x}.items()),
    "nothing": lambda m, x: (None, "text", m.b(m.a(x).relu()), m, lambda: x),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_tensors_of_a_result_of_any_kind(kind: str) -> None:
    assert groups(RESULTS[kind]) == "6"


def test_units_in_a_result_of_any_kind_do_not_move() -> None:
    kinds: list[Callable[[Tensor], Any]] = [Record, Plain, Slotted, lambda y: iter([y])]
    parts = {f"a{k}": lin(4, 5) for k in range(len(kinds))}
    results = lambda m, x: [kind(m.get_submodule(name)(x)) for name, kind in zip(parts, kinds, strict=True)]  # noqa: E731
    assert groups(lambda m, x: (m.b(m.a(x).relu()), *results(m, x)), **parts) == "6"


def test_a_cache_is_no_result() -> None:
    class KeyCache(Plain):
        pass

    assert groups(lambda m, x: (m.b(m.a(x).relu()), KeyCache(m.a(x)))) == "6"


@pytest.mark.parametrize("kind", [Record, Plain, Slotted, types.SimpleNamespace])
def test_tensors_of_an_argument_of_any_kind(kind: Any) -> None:
    """They are inputs: the units that meet them do not move, and they come back as they were."""
    argument = kind(y=torch.randn(5, 4))
    before = argument.y.clone()
    sym = coset.symmetry(small(lambda m, o: m.b(m.a(o.y.mul_(2)).relu())), (argument,))
    assert signature(sym) == expect("6") and sym.verification is not None and sym.verification.conclusive
    assert torch.equal(argument.y, before)


def test_lazy_layers_and_norms_with_lazy_buffers() -> None:
    layers = nn.Sequential(nn.LazyConv2d(6, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    assert signature(coset.symmetry(layers, torch.randn(2, 3, 5, 5))) == expect("6")
    assert isinstance(layers[0], nn.LazyConv2d)


def test_a_step_has_no_scale() -> None:
    """h H(h), which torch does not differentiate."""
    model = small(lambda m, x: m.b(m.a(x) * torch.heaviside(m.a(x), x.new_zeros(()))))
    sym = coset.symmetry(model, torch.randn(5, 4), strict=True)
    assert signature(sym) == expect("6") and [scaling.size for scaling in sym.scalings] == [6]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("place", ["argument", "buffer"])
def test_sparse_matrices(place: str, layout: str) -> None:
    """They are no tensors whose entries could move or be made up, and they refuse no model."""
    adjacency = torch.eye(5).roll(1, 0)
    sparse = adjacency.to_sparse() if layout == "coo" else adjacency.to_sparse_csr()

    def forward(m: Net, x: Tensor, matrix: Tensor | None = None) -> Tensor:
        matrix = m.matrix if matrix is None else matrix
        return torch.sparse.mm(matrix, m.b(torch.sparse.mm(matrix, m.a(x)).relu()))

    if place == "argument":
        sym = coset.symmetry(small(forward), (torch.randn(5, 4), sparse))
    else:
        model = small(forward, matrix=sparse)
        sym = coset.symmetry(model, torch.randn(5, 4))
        state = sym.act(sym.random(torch.Generator().manual_seed(0)), model.state_dict())
        assert state["matrix"].layout == sparse.layout and torch.equal(state["matrix"].to_dense(), adjacency)
    assert signature(sym) == expect("6") and sym.verification is not None and sym.verification.conclusive
    assert [scaling.size for scaling in sym.scalings if scaling.kind == "scaling"] == [6]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="an op of later versions of torch")
def test_experts_by_products_of_groups_of_rows() -> None:
    """As transformers calls the experts of a mixture: sorted by expert, in bfloat16, and put back."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        weights, experts = m.route(h).softmax(-1).topk(2, -1)
        order = experts.flatten().argsort()
        rows = torch.arange(len(x)).repeat_interleave(2, 0)[order]
        ends = torch.histc(experts.float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
        product = lambda x, w: torch._grouped_mm(x.bfloat16(), w.bfloat16().mT, offs=ends).to(x.dtype)  # noqa: E731
        gate, up = product(h[rows], m.up).chunk(2, -1)
        out = product(F.silu(gate) * up, m.down) * weights.flatten()[order][:, None]
        return m.b(out[order.argsort()].view(len(x), 2, -1).sum(1))

    torch.manual_seed(0)
    up, down = (nn.Parameter(torch.randn(4, *shape) / 4) for shape in ((32, 8), (24, 16)))
    model = small(forward, a=lin(4, 8), route=lin(8, 4), up=up, down=down, b=lin(24, 3))
    sym = coset.symmetry(model, torch.randn(6, 4))
    assert signature(sym) == expect("8 24 16/4")
    assert sym.verification is not None and sym.verification.conclusive and sym.verification.dtype == "bfloat16"


def test_a_mistake_is_seen_though_the_model_rounds() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(m.a(x).relu().bfloat16().to(x.dtype))

    model = small(forward)
    sym = coset.symmetry(model, torch.randn(5, 4))
    assert signature(sym) == expect("6") and [scaling.size for scaling in sym.scalings] == [6]
    with pytest.raises(SymmetryError, match="'a'"):
        sym.verify(small(lambda m, x: m.b((m.a(x).relu() * torch.arange(6)).bfloat16().to(x.dtype))), torch.randn(5, 4))


@pytest.mark.parametrize("make", [torch.jit.script, lambda layers: torch.jit.trace(layers, torch.randn(2, 4))])
def test_torchscript_is_refused_by_name(make: Callable[[nn.Module], nn.Module]) -> None:
    inner = make(nn.Sequential(nn.Linear(4, 6), nn.ReLU()))
    with pytest.raises(SymmetryError, match=r"'part' is TorchScript.*give the module that it was made from"):
        coset.symmetry(small(lambda m, x: m.b(m.part(x)), part=inner, a=nn.Identity()), torch.randn(5, 4))


NOT_FINITE: dict[str, Forward] = {
    "masked": lambda m, x: m.b(m.a(x).relu()).masked_fill(torch.tensor([True, False, False]), -torch.inf),
    "a mask beside it": lambda m, x: (m.b(m.a(x).relu()), torch.full((3, 3), -torch.inf).triu(1)),
    "nan beside it": lambda m, x: (m.b(m.a(x).relu()), torch.full((3,), torch.nan)),
    "rows": lambda m, x: m.b(m.a(x).relu()) / (x[:, :1] > 0),
    "huge": lambda m, x: m.b(1 / (m.a(x).relu() + 1e-12)),
    "infinite here and there": lambda m, x: m.b.weight[0] * 0 + 1 / m.a(x).relu().sum(-1, keepdim=True).floor(),
}


@pytest.mark.parametrize("kind", NOT_FINITE)
def test_infinite_numbers_in_the_output(kind: str) -> None:
    torch.manual_seed(1)
    model = small(NOT_FINITE[kind], a=lin(4, 6))
    sym = coset.symmetry(model, torch.randn(5, 4))
    assert sym.verification is not None and sym.verification.conclusive


def test_infinities_of_another_sign_are_a_difference() -> None:
    """One unit is told from the others by the sign of an infinity alone."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return torch.cat([m.b(m.a(x).relu()), ((m.a(x)[:, :1] > 0) * 2.0 - 1) / x.new_zeros(1)], 1)

    model = randomise(small(forward))
    sym = coset.symmetry(small(lambda m, x: m.b(m.a(x).relu())), torch.randn(5, 4))
    with pytest.raises(SymmetryError, match="not a symmetry"):
        sym.verify(model, torch.randn(5, 4, dtype=torch.float64))


def test_a_mask_of_infinities_among_the_buffers() -> None:
    mask = torch.full((5, 5), -torch.inf).triu(1)
    model = small(lambda m, x: m.b((m.mask + x @ x.T).softmax(-1) @ m.a(x).relu()), mask=mask)
    assert signature(coset.symmetry(model, torch.randn(5, 4))) == expect("6")


def test_an_input_without_entries_is_inconclusive() -> None:
    model = small(lambda m, x: m.b(m.a(x).relu()))
    sym = coset.symmetry(model, torch.randn(0, 4))
    assert signature(sym) == expect("6") and sym.verification is not None and not sym.verification.conclusive
    state = sym.act(sym.random(torch.Generator().manual_seed(0)), randomise(model).state_dict())
    assert deviation(model, (torch.randn(5, 4, dtype=torch.float64),), state) < 1e-9
