"""Where units are seen: against hooks on modules, and against the action on positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coset
from coset import ModelError, Symmetry
from coset.alignment.activation_sites import Site, places, sites, sources, units_on, watch
from coset.alignment.objective import moved_scores
from coset.core import state as states
from coset.zoo import build, example_input


class Net(nn.Module):
    """4 -> 6 -> 5 -> 3 with any functions in between."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.functions
        out: Tensor = self.c(second(self.b(first(self.a(x)))))
        return out


def look(model: nn.Module, *args: Tensor, seed: int = 0) -> tuple[Symmetry, list[Site]]:
    sym = coset.symmetry(model, args, verify=False)
    return sym, sites(sym, model, states.of(model), args, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def relu_net() -> Symmetry:
    return coset.symmetry(Net(F.relu, F.relu), (torch.randn(2, 4),))


def kinds(sym: Symmetry, every: list[Site]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for site in every:
        for name in units_on(sym, site.axis):
            counts.setdefault(name, Counter())[site.kind] += 1
    return counts


def activations(model: nn.Module, *args: Tensor) -> dict[int, Tensor]:
    values: dict[int, Tensor] = {}
    with torch.no_grad():
        watch(model, states.of(model), args, None, lambda number, _, x: values.update({number: x.clone()}))
    return values


FUNCTIONS = {
    "relu": F.relu,
    "relu_in_place": lambda x: F.relu(x, inplace=True),
    "relu_module": nn.ReLU(),
    "relu_module_in_place": nn.ReLU(inplace=True),
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "prelu": nn.PReLU(),
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "clamp_min": lambda x: x.clamp(min=0),
    "maximum": lambda x: torch.maximum(torch.zeros(()), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_activation_function_is_seen_before_and_after(name: str, relu_net: Symmetry) -> None:
    torch.manual_seed(0)
    model = Net(FUNCTIONS[name], FUNCTIONS[name])
    x = torch.randn(16, 4)
    sym = relu_net
    every = sites(sym, model, states.of(model), (x,))
    assert kinds(sym, every) == {"a": Counter(pre=1, post=1), "b": Counter(pre=1, post=1)}
    tensors = activations(model, x)
    before = model.a(x)
    values = {site.kind: tensors[site.number] for site in every if units_on(sym, site.axis) == {"a"}}
    torch.testing.assert_close(values["pre"], before)
    torch.testing.assert_close(values["post"], FUNCTIONS[name](before.clone()))
    assert {site.dim for site in every} == {1}


def test_units_without_an_activation_function_are_seen_at_other_ops() -> None:
    torch.manual_seed(0)
    model = Net(F.relu, lambda x: x)
    x = torch.randn(6, 4)
    sym, every = look(model, x)
    assert kinds(sym, every) == {"a": Counter(pre=1, post=1), "b": Counter(other=1)}
    # Not the transposed weight, whose units move too but which is no activation.
    (other,) = [site for site in every if site.kind == "other"]
    torch.testing.assert_close(activations(model, x)[other.number], model.b(F.relu(model.a(x))))


def test_residual_streams_are_seen_after_every_block() -> None:
    torch.manual_seed(0)
    model = build("resnet20:width=0.25").eval()
    (x,) = example_input(model, 4)
    sym, every = look(model, x)
    counts = kinds(sym, every)
    assert counts.keys() == sym.sets.keys()
    for name, count in counts.items():
        streams = {"stem": 4, "stages.1.0.conv2": 3, "stages.2.0.conv2": 3}
        assert count == Counter(pre=streams.get(name, 1), post=streams.get(name, 1))
    outputs: list[Tensor] = []
    for module in (m for m in model.modules() if isinstance(m, nn.ReLU)):
        module.register_forward_hook(lambda _, __, y: outputs.append(y))
    tensors = activations(model, x)
    after = [site for site in every if site.kind == "post"]
    assert len(after) == len(outputs) == 19
    for site, y in zip(after, outputs, strict=True):
        torch.testing.assert_close(tensors[site.number], y)
        assert site.dim == 1


def test_vision_transformer() -> None:
    torch.manual_seed(0)
    model = build("vit:dim=16,depth=2,heads=2,patch=8")
    sym, every = look(model, *example_input(model, 4))
    counts = kinds(sym, every)
    for block in ("blocks.0", "blocks.1"):
        assert counts[f"{block}.mlp.0"] == Counter(pre=1, post=1)
        assert counts[f"{block}.attention.qkv[1]"] == counts[f"{block}.attention.qkv[2]"] == Counter(other=1)
        # Heads stand with their inner units only.
        assert f"{block}.attention.qkv[0]" not in counts
    assert counts["patches"].keys() == {"other"} and counts["patches"]["other"] > 6


def test_heads_are_seen_in_attention_weights() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            weights = (q @ k.mT).softmax(-1)
            out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
            return out

    torch.manual_seed(0)
    sym, every = look(Attention(), torch.randn(2, 5, 12))
    (heads,) = [group.name for group in sym.sets.values() if group.size == 3]
    assert {(site.dim, site.kind) for site in every if units_on(sym, site.axis) == {heads}} == {(1, "other")}


@pytest.mark.parametrize("seed", range(5))
def test_small_sets_of_one_size_are_told_apart(seed: int) -> None:
    torch.manual_seed(seed)
    model = build("mlp:5-2-2-2-2-2-2-3,activation=tanh")
    sym, every = look(model, torch.randn(2, 5), seed=seed)
    order = [units_on(sym, site.axis) for site in every if site.kind == "post"]
    assert order == [{f"layers.{k}"} for k in range(6)]


def test_dead_units_confuse_nothing() -> None:
    """One live unit a layer: any axis that moves it alike would do, so more elements must be tried."""
    torch.manual_seed(0)
    model = build("mlp:5-8-8-8-8-3")
    for layer in model.layers[:-1]:
        layer.weight.data[1:].abs_().neg_()
        layer.weight.data[0].abs_()
        layer.bias.data[1:] = -5.0
        layer.bias.data[0] = 0.1
    sym, every = look(model, torch.rand(8, 5))
    order = [units_on(sym, site.axis) for site in every if site.kind == "post"]
    assert order == [{f"layers.{k}"} for k in range(4)]


@pytest.mark.parametrize("seed", range(8))
def test_one_live_unit_is_not_taken_for_that_of_another_set(seed: int) -> None:
    """The products of 2 and 3 units show neither; 6 other units that move their one live entry alike must not."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 2), nn.Linear(4, 3), nn.Linear(4, 6)
            self.mixed, self.head = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            pairs = (self.a(x).relu().unsqueeze(2) * self.b(x).relu().unsqueeze(1)).flatten(1)
            out: Tensor = self.mixed(F.softplus(pairs)) + self.head(self.c(x).tanh())
            return out

    torch.manual_seed(0)
    model = Net()
    for layer in (model.a, model.b):
        layer.bias.data[1:] = -5.0
        layer.bias.data[0] = 5.0
    sym, every = look(model, torch.rand(8, 4), seed=seed)
    assert kinds(sym, every)["c"] == Counter(pre=1, post=1)


def test_units_that_are_all_alike_are_not_seen() -> None:
    model = Net(F.relu, F.relu)
    nn.init.zeros_(model.a.weight)
    nn.init.ones_(model.a.bias)
    sym, every = look(model, torch.randn(6, 4))
    assert kinds(sym, every).keys() == {"b"}


def test_a_pass_that_changes_is_refused(relu_net: Symmetry) -> None:
    class Fickle(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x if self.calls < 2 else x + 0)

    model = Fickle(F.relu, F.relu)
    with pytest.raises(ModelError, match="Fickle runs other ops"):
        sites(relu_net, model, states.of(model), (torch.randn(2, 4),))


def test_model_and_state_are_left_alone(relu_net: Symmetry) -> None:
    model = Net(nn.ReLU(inplace=True), F.relu).train()
    state = states.of(model)
    before = {name: x.clone() for name, x in state.items()}
    x = torch.randn(3, 4)
    copy = x.clone()
    assert sites(relu_net, model, state, (x,)) == sites(relu_net, model, state, (x,))
    assert model.training and torch.equal(x, copy) and states.allclose(state, before, 0, 0)


# --- positions ---------------------------------------------------------------------------------------------

SPEC = """{
 "groups": {"h": 3, "u": {"size": 4, "over": ["h"]}, "v": {"size": 2, "over": ["h"]}, "w": 5,
            "f": {"size": 2, "movable": false}},
 "tensors": {"t": [%s]}
}"""
AXES = {
    '"w"': {"w"},
    '["w", 3]': {"w"},
    '[2, "w", "f"]': {"w"},
    '["h", "u"]': {"u"},
    '["u", "h"]': {"u"},
    '["h", 2, "u"]': {"u"},
    '{"concat": [["h", "u"], ["h", "u"], ["h", "v"]]}': {"u", "v"},
    '{"concat": ["w", 4, "w"]}': {"w"},
    '{"interleave": [["h", "u"], ["h", "u"]]}': {"u"},
    '["h", {"concat": ["u", "v", 1]}]': {"h", "u", "v"},
    '["h", "f"]': {"h"},
}


@pytest.mark.parametrize("axis", AXES)
def test_places_turn_scores_of_positions_into_scores_of_units(axis: str) -> None:
    """For any scores C of positions and any g: sum_x C[x, g x] = sum over sets of <scores of their units, P>."""
    sym = Symmetry.from_json(SPEC % axis)
    (term,) = sym.axes["t"]
    assert units_on(sym, term) == AXES[axis]
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(term.size, term.size, generator=generator, dtype=torch.float64)
    element = sym.random(generator)
    positions = sources(term, element)
    image = sym.act(element, {"t": torch.arange(term.size)})["t"]
    assert torch.equal(positions, image)
    total, fixed = 0.0, set(range(term.size))
    for name in units_on(sym, term):
        at = places(sym, term, name)
        assert at is not None
        fixed -= set(at.flatten().tolist())
        by_unit = scores[at[:, :, None, :, None], at[:, None, :, None, :]].sum(0)
        by_unit = by_unit if sym.sets[name].over else by_unit[0, 0]
        total += float(moved_scores(element, name, by_unit).diagonal(dim1=-2, dim2=-1).sum())
    total += float(sum(scores[x, x] for x in fixed))
    assert total == pytest.approx(float(scores[torch.arange(term.size), positions].sum()))


def test_products_of_two_free_sets_show_neither() -> None:
    sym = Symmetry.from_json(SPEC % '["w", "h"]')
    assert units_on(sym, sym.axes["t"][0]) == set()
