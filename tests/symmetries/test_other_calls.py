"""A group holds for every call that a model takes, not only for the one that was traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, par
from oracle import deviation, randomise, signature
from torch import Tensor, nn

import coset
from coset import Example, Symmetry, SymmetryError


def holds(sym: Symmetry, model: nn.Module, *calls: tuple[Any, ...]) -> None:
    """Random elements with factors change nothing in these calls, in float64."""
    model = randomise(model)
    for k, args in enumerate(calls):
        generator = torch.Generator().manual_seed(k)
        for _ in range(3):
            state = sym.act(sym.random(generator, scalings=True), model.state_dict())
            assert deviation(model, args, state) < 1e-9, args


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loop(m: Net, x: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[0], 5)
    for t in range(x.shape[1]):
        h = torch.tanh(m.i(x[:, t]) + m.h(h))
    return m.o(h)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_loop_over_one_step_is_traced_with_more(steps: int, verify: bool) -> None:
    model = Net(loop, i=lin(3, 5), h=nn.Linear(5, 5, bias=False), o=lin(5, 2))
    sym = coset.symmetry(model, torch.randn(2, steps, 3), verify=verify)
    assert signature(sym) == {"5": 1}
    holds(sym, model, (x(2, 1, 3),), (x(3, 4, 3),))


def branch_by_length(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    if x.shape[1] > 4:
        h = h + m.c.cumsum(0)
    return m.o(F.gelu(m.b(F.gelu(h))))


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_both_sides_of_a_branch_by_length(length: int) -> None:
    """The units that one side sums up in order are fixed, the next ones are not."""
    model = Net(branch_by_length, a=lin(3, 6), b=lin(6, 7), c=par(6), o=lin(7, 2))
    sym = coset.symmetry(model, torch.randn(2, length, 3))
    assert signature(sym) == {"7": 1}
    holds(sym, model, (x(2, 3, 3),), (x(1, 9, 3),))


def repeated(m: Net, x: Tensor, steps: int) -> Tensor:
    h = torch.tanh(m.i(x))
    for _ in range(steps - 1):
        h = torch.tanh(m.h(h))
    return m.o(h)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_count_of_steps_among_the_arguments(steps: int) -> None:
    model = Net(repeated, i=lin(3, 5), h=lin(5, 5), o=lin(5, 2))
    sym = coset.symmetry(model, (torch.randn(2, 3), steps))
    assert signature(sym) == {"5": 1}
    holds(sym, model, (x(2, 3), 1), (x(2, 3), 4))


def test_both_values_of_a_flag() -> None:
    def forward(m: Net, x: Tensor, scaled: bool) -> Tensor:
        h = m.a(x)
        return m.b(h * m.c.abs() if scaled else F.gelu(h))

    model = Net(forward, a=lin(3, 4), b=lin(4, 2), c=par(4))
    sym = coset.symmetry(model, (torch.randn(2, 3), True))
    assert signature(sym) == {"4": 1}
    holds(sym, model, (x(2, 3), True), (x(2, 3), False))


def test_a_flag_that_asks_for_other_results_says_nothing() -> None:
    def forward(m: Net, x: Tensor, hidden: bool) -> Any:
        h = F.gelu(m.a(x))
        return (m.b(h), h) if hidden else m.b(h)

    model = Net(forward, a=lin(3, 4), b=lin(4, 2))
    assert signature(coset.symmetry(model, (torch.randn(2, 3), False))) == {"4": 1}


def test_units_beyond_a_slice_by_length_are_fixed() -> None:
    """As many scores as the longest sequence has, cut to the length at hand."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.s(x)[..., : x.shape[1]].softmax(-1) @ x)

    for length in (4, 6):
        model = Net(forward, s=lin(3, 6), o=lin(3, 2))
        sym = coset.symmetry(model, torch.randn(2, length, 3))
        assert not sym.groups
        holds(sym, model, (x(2, 6, 3),), (x(2, 2, 3),))


class Memory(nn.Module):
    """Remembers the mean of its units from one call to the next, in a buffer of some kind."""

    def __init__(self, rebinds: bool, persistent: bool) -> None:
        super().__init__()
        self.a, self.o, self.r = lin(3, 5), lin(5, 2), lin(5, 5)
        self.rebinds = rebinds
        self.register_buffer("mean", torch.zeros(1, 5), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x) + self.r(self.mean))
        mean = h.detach().mean(0, keepdim=True)
        if self.rebinds:
            self.mean = mean
        else:
            self.mean.copy_(mean)
        return self.o(h)


def second_call(model: nn.Module, args: tuple[Any, ...]) -> Tensor:
    with torch.no_grad():
        model(*args)
        return model(*args)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("rebinds", [True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_buffers_that_the_next_call_reads(rebinds: bool, persistent: bool, verify: bool) -> None:
    sym = coset.symmetry(Memory(rebinds, persistent), torch.randn(2, 3), verify=verify)
    assert signature(sym) == ({"5": 1} if persistent else {})
    model, moved, args = Memory(rebinds, persistent).double(), Memory(rebinds, persistent).double(), (x(2, 3),)
    moved.load_state_dict(sym.act(sym.random(torch.Generator().manual_seed(1), scalings=True), model.state_dict()))
    assert torch.allclose(second_call(model, args), second_call(moved, args), atol=1e-12)


class Stateful(nn.Module):
    """Keeps its last hidden state as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o, self.r = lin(3, 5), lin(5, 2), lin(5, 5)
        self.h: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x) if self.h is None else self.a(x) + self.r(self.h)
        self.h = torch.tanh(h)
        return self.o(self.h)


def test_a_state_kept_as_an_attribute() -> None:
    model = Stateful()
    sym = coset.symmetry(model, torch.randn(2, 3))
    assert model.h is None, "what calls leave in a module is taken away"
    moved, args = Stateful().double(), (x(2, 3),)
    moved.load_state_dict(sym.act(sym.random(scalings=True), model.state_dict()))
    assert torch.allclose(second_call(model.double(), args), second_call(moved, args), atol=1e-6)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.first, self.second = lin(3, 6), lin(6, 7), lin(7, 2), lin(7, 3)

    def forward(self, x: Tensor, task: str = "first") -> Tensor:
        h = self.b(F.gelu(self.a(x))).relu()
        out: Tensor = self.first(h) if task == "first" else self.second(h)
        return out


def test_a_head_that_no_example_reaches_fixes_what_it_may_read() -> None:
    sym = coset.symmetry(TwoHeads(), torch.randn(2, 3))
    assert signature(sym) == {"6": 1}
    assert any("second.weight" in note for note in sym.notes)
    holds(sym, TwoHeads(), (x(2, 3), "second"))
    assert coset.Symmetry.from_json(sym.to_json()).notes == sym.notes


def test_examples_that_reach_it_free_the_units() -> None:
    for other in ((torch.randn(2, 3), "second"), Example(torch.randn(2, 3), {"task": "second"})):
        sym = coset.symmetry(TwoHeads(), torch.randn(2, 3), examples=[other])
        assert signature(sym) == {"6": 1, "7": 1} and not sym.notes
        holds(sym, TwoHeads(), (x(2, 3),), (x(2, 3), "second"))


def test_unreached_parameters_may_be_refused_or_ignored() -> None:
    with pytest.raises(SymmetryError, match=r"reaches second\.weight, second\.bias"):
        coset.symmetry(TwoHeads(), torch.randn(2, 3), unreached="refuse")
    with pytest.raises(SymmetryError, match=r"reaches second\.weight"):
        coset.symmetry(TwoHeads(), torch.randn(2, 3), strict=True)
    assert signature(coset.symmetry(TwoHeads(), torch.randn(2, 3), unreached="ignore")) == {"6": 1, "7": 1}
    with pytest.raises(SymmetryError, match="'guess' is none of"):
        coset.symmetry(TwoHeads(), torch.randn(2, 3), unreached="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("readers", ["flat", "concatenation"])
def test_unreached_readers_of_flattened_and_joined_units(readers: str) -> None:
    def forward(m: Net, x: Tensor, task: int = 0) -> Tensor:
        h, k = F.gelu(m.a(x)), F.gelu(m.c(x))
        if task == 2**40:  # nobody would guess this number
            joined = torch.cat([h, k], -1) if readers == "concatenation" else torch.stack([h, h * 2], -1)
            return m.d(joined.flatten(1))
        return m.b(h) + m.e(k)

    size = 11 if readers == "concatenation" else 12
    model = Net(forward, a=lin(3, 6), b=lin(6, 2), c=lin(3, 5), e=lin(5, 2), d=lin(size, 2))
    sym = coset.symmetry(model, torch.randn(2, 3))
    holds(sym, model, (x(2, 3),), (x(2, 3), 2**40))
    assert signature(sym) == ({} if readers == "concatenation" else {"5": 1})


def test_auxiliary_heads_of_training_are_traced() -> None:
    def forward(m: Net, x: Tensor) -> Any:
        h = F.gelu(m.a(x))
        return (m.b(h), m.c(h)) if m.training else m.b(h)

    model = Net(forward, a=lin(3, 4), b=lin(4, 2), c=lin(4, 5))
    sym = coset.symmetry(model, torch.randn(2, 3))
    assert signature(sym) == {"4": 1} and not sym.notes
    assert ("c.weight", 1) in sym.groups[0].members


def test_without_weights_another_size_is_traced() -> None:
    with torch.device("meta"):
        model = Net(branch_by_length, a=lin(3, 6), b=lin(6, 7), c=par(6), o=lin(7, 2))
    for length in (3, 5):
        sym = coset.symmetry(model, torch.randn(2, length, 3))
        assert signature(sym) == {"7": 1}


def test_examples_given_by_the_user_are_verified() -> None:
    """A call that nobody would make up: the group must hold for it, or it is fixed with a note."""

    def forward(m: Net, x: Tensor, way: str = "plain") -> Tensor:
        h = F.gelu(m.a(x))
        return m.b(h.cumsum(-1) if way == "summed" else h)

    model = Net(forward, a=lin(3, 4), b=lin(4, 2))
    assert signature(coset.symmetry(model, torch.randn(2, 3))) == {"4": 1}
    assert not coset.symmetry(model, torch.randn(2, 3), examples=[(torch.randn(2, 3), "summed")]).groups


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


@dataclasses.dataclass
class Batch:
    inputs: Tensor
    name: str = ""


def plain(*args: Any) -> nn.Module:
    return nn.Sequential(lin(3, 5), nn.GELU(), lin(5, 2))


REFUSED_BEFORE: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "data class out": (lambda: Net(lambda m, x: Output(m.n(x)), n=plain()), torch.randn(2, 3)),
    "data class in": (lambda: Net(lambda m, b: m.n(b.inputs), n=plain()), (Batch(torch.randn(2, 3), "train"),)),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(5), nn.GELU(), nn.LazyLinear(2)), torch.randn(2, 3)),
    "data parallel": (lambda: nn.DataParallel(plain()), torch.randn(2, 3)),
    "writes into its input": (lambda: Net(lambda m, x: m.n(x.mul_(2).add_(1)), n=plain()), torch.randn(2, 3)),
    "distribution": (
        lambda: Net(lambda m, x: torch.distributions.Normal(m.n(x), 1.0).log_prob(x[:, :2]), n=plain()),
        torch.randn(2, 3),
    ),
    "offsets": (
        lambda: Net(lambda m, i, o: m.n(m.e(i, o)), e=nn.EmbeddingBag(10, 3, mode="sum"), n=plain()),
        (torch.tensor([1, 2, 3, 4, 9]), torch.tensor([0, 2])),
    ),
}


@pytest.mark.parametrize("name", REFUSED_BEFORE)
def test_models_of_unusual_shape(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, args = REFUSED_BEFORE[name]
    before = [t.clone() for t in coset.Example(args).tensors]
    sym = coset.symmetry(make(), args)
    assert signature(sym)["5"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, coset.Example(args).tensors, strict=True))
    assert capfd.readouterr() == ("", "")


def test_a_failed_trace_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net(lambda m, x: m.b(m.a(x) if x.sum() > 0 else -m.a(x)), a=lin(3, 4), b=lin(4, 2))
    with pytest.raises(SymmetryError, match="cannot be traced"):
        coset.symmetry(model, torch.randn(2, 3))
    assert capfd.readouterr() == ("", "")


class LeftToDefaults(nn.Module):
    """Sums up units in order, if asked for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.a, self.b, self.c = lin(3, 4), lin(4, 5), lin(5, 2)

    def forward(self, x: Tensor, rounds: int = 0, *, flag: bool = False, power: float = 1.0) -> Tensor:
        h = torch.tanh(self.a(x))
        for _ in range(rounds if self.name == "rounds" else 0):
            h = torch.tanh(h.cumsum(-1))
        if (self.name == "flag" and flag) or (self.name == "power" and power == 0.0):
            h = h.cumsum(-1)
        return self.c(torch.tanh(self.b(h)))


@pytest.mark.parametrize("name", ["rounds", "flag", "power"])
@pytest.mark.parametrize("told", [False, True])
def test_numbers_and_flags_left_to_their_defaults_are_varied(name: str, told: bool) -> None:
    kwargs = {"rounds": {"rounds": 0}, "flag": {"flag": False}, "power": {"power": 1.0}}[name] if told else {}
    assert signature(coset.symmetry(LeftToDefaults(name), torch.randn(2, 3), kwargs)) == {"5": 1}
    assert signature(coset.symmetry(LeftToDefaults("none"), torch.randn(2, 3), kwargs)) == {"4": 1, "5": 1}


def test_verify_varies_defaults_too() -> None:
    model = LeftToDefaults("rounds")
    sym = coset.symmetry(LeftToDefaults("none"), torch.randn(2, 3))
    with pytest.raises(SymmetryError, match="in place of 0"):
        sym.verify(model, torch.randn(2, 3))


def test_rounding_is_no_counterexample() -> None:
    """At inputs that are all equal a prototypical network gives the rounding of its means, which units reorder."""
    model = Net(lambda m, x, shots: -torch.cdist(m.a(x), m.a(shots).mean(1)), a=nn.Sequential(lin(4, 5), lin(5, 6)))
    calls = torch.randn(7, 4), torch.randn(3, 4, 4)
    model = randomise(model)
    for args in (calls, tuple(call.double() for call in calls)):
        sym = coset.symmetry(model.to(args[0].dtype), args)
        assert signature(sym) == {"5": 1, "6": 1} and sym.notes == ()


def test_a_small_branch_of_another_call_is_a_counterexample() -> None:
    """Small is not rounding yet."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(h.relu()) if len(x) < 5 else 1e-6 * h.cumsum(-1)

    assert coset.symmetry(Net(forward, a=lin(3, 6), b=lin(6, 6)), torch.randn(3, 3)).groups == ()
