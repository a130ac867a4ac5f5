"""Canonical forms: the same function, one for each orbit, and the way back."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Symmetry, zoo
from coset.core import state as states
from coset.symmetries.comparison import generic
from coset.weightspace.canonical_scales import scale_conditions

State = dict[str, Tensor]
Network = tuple[nn.Module, tuple[Any, ...], Symmetry]
law = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=list(HealthCheck))


class Residual(nn.Module):
    """A stream without norms, whose weights from and to itself are large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.one(h.relu())
        return self.head((h + self.two(h.relu())).relu())


def cnn() -> nn.Module:
    layers = [nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2), nn.LeakyReLU(0.1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: zoo.MLP([5, 6, 7, 3]), (4, 5)),
    "tanh": (lambda: zoo.MLP([5, 6, 7, 3], "tanh"), (4, 5)),
    "leaky": (lambda: zoo.MLP([5, 6, 7, 3], "leaky_relu", bias=False), (4, 5)),
    "gelu": (lambda: zoo.MLP([5, 6, 7, 3], "gelu"), (4, 5)),
    "cnn": (cnn, (2, 2, 8, 8)),
    "residual": (Residual, (4, 3)),
    "resnet bn": (lambda: zoo.ResNet(1, 0.25, "bn", 3, 2), (2, 3, 8, 8)),
    "resnet frn": (lambda: zoo.ResNet(1, 0.25, "frn", 3, 2), (2, 3, 8, 8)),
    "vit": (lambda: zoo.ViT(dim=8, depth=1, heads=2, patch=4, image_size=8, classes=3), (2, 3, 8, 8)),
}


@functools.cache
def network(name: str) -> Network:
    torch.manual_seed(0)
    make, shape = NETS[name]
    model, args = make().double().eval(), (torch.randn(shape, dtype=torch.float64),)
    return model, args, coset.symmetry(model, args, verify=False)


def weights(model: nn.Module, seed: int) -> State:
    return generic(states.of(model), torch.Generator().manual_seed(seed))


def apart(a: State, b: State) -> float:
    return float(states.norm(states.sub(a, b)) / states.norm(b))


def output(model: nn.Module, state: State, args: tuple[Any, ...]) -> Tensor:
    with torch.no_grad():
        result: Tensor = states.call(model, state, args)
    return result


@pytest.mark.parametrize("name", NETS)
def test_one_form_for_each_orbit(name: str) -> None:
    model, args, sym = network(name)
    for seed in range(3):
        given = weights(model, seed)
        result = coset.canonicalize(given, sym)
        before, after = output(model, given, args), output(model, result.state, args)
        assert torch.allclose(after, before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))
        assert apart(sym.act(result.element, given), result.state) < 1e-14
        assert apart(sym.act(result.element.inverse(), result.state), given) < 1e-12
        assert apart(coset.canonicalize(result.state, sym).state, result.state) < 1e-12
        image = sym.act(sym.random(torch.Generator().manual_seed(seed + 9), scalings=True), given)
        assert apart(image, given) > 0.1
        assert apart(coset.canonicalize(image, sym).state, result.state) < 1e-12


@law
@given(st.sampled_from(["relu", "tanh", "leaky", "cnn"]), st.integers(0, 10**6), st.integers(0, 10**6))
def test_any_weights_and_any_element(name: str, first: int, second: int) -> None:
    model, args, sym = network(name)
    given = weights(model, first)
    image = sym.act(sym.random(torch.Generator().manual_seed(second), scalings=True), given)
    result, again = coset.canonicalize(given, sym), coset.canonicalize(image, sym)
    assert apart(again.state, result.state) < 1e-12
    assert torch.allclose(output(model, result.state, args), output(model, given, args), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "tanh", "cnn", "resnet bn", "vit"])
def test_a_population_is_its_members(name: str) -> None:
    model, _, sym = network(name)
    members = [weights(model, seed) for seed in range(3)]
    result = coset.canonicalize(states.stack(members), sym)
    for k, one in enumerate(states.unstack(result.state)):
        assert apart(one, coset.canonicalize(members[k], sym).state) < 1e-14
    assert apart(sym.act(result.element.inverse(), result.state), states.stack(members)) < 1e-12


def test_relu_units_have_unit_norm_by_hand() -> None:
    model, _, sym = network("relu")
    a = weights(model, 0)
    w0, b0, w1, b1, w2, b2 = (x.clone() for x in a.values())
    r0 = w0.norm(dim=1)
    w0, b0, w1 = w0 / r0[:, None], b0 / r0, w1 * r0
    r1 = w1.norm(dim=1)
    w1, b1, w2 = w1 / r1[:, None], b1 / r1, w2 * r1
    # Biases differ, so they alone give the order.
    p, q = b0.argsort(), b1.argsort()
    expected = [w0[p], b0[p], w1[q][:, p], b1[q], w2[:, q], b2]
    result = coset.canonicalize(a, sym).state
    for x, y in zip(result.values(), expected, strict=True):
        assert torch.allclose(x, y, rtol=1e-12)


def test_batch_norm_by_hand() -> None:
    """(weight, bias) of norm one; filters and statistics, whose factors hold in evaluation only, are left alone."""
    model, _, sym = network("resnet bn")
    given = weights(model, 0)
    result = coset.canonicalize(given, sym).state
    for name in [name for name in result if "running" in name]:
        assert torch.equal(result[name].abs().sort().values, given[name].abs().sort().values)
    assert torch.allclose(result["stem.weight"].norm(), given["stem.weight"].norm())
    inner = torch.stack([result["stages.0.0.norm1.weight"], result["stages.0.0.norm1.bias"]])
    assert torch.allclose(inner.norm(dim=0), torch.ones(4, dtype=torch.float64))


def test_streams_are_fixed_at_their_start() -> None:
    """The weights from the stream to itself are too large for a joint condition; the stem alone always has one."""
    model, args, sym = network("residual")
    a = weights(model, 0)
    a["one.weight"] *= 30
    result = coset.canonicalize(a, sym)
    assert torch.allclose(result.state["stem.weight"].norm(dim=1), torch.ones(6, dtype=torch.float64))
    assert torch.allclose(output(model, result.state, args), output(model, a, args), rtol=1e-9)


def test_signs_by_hand() -> None:
    model, _, sym = network("tanh")
    result = coset.canonicalize(weights(model, 0), sym).state
    assert (result["layers.0.weight"].pow(3).sum(1) > 0).all()
    assert (result["layers.1.weight"].pow(3).sum(1) > 0).all()


def test_balanced_weights_leave_the_sign_to_the_next() -> None:
    """The cubes of unit 2 add up to rounding errors, which depend on the order of its inputs."""
    model, _, sym = network("tanh")
    a = coset.canonicalize(weights(model, 0), sym).state
    a["layers.1.weight"][2] = torch.tensor([0.1, 0.2, 0.7, -0.1, -0.2, -0.7])
    for seed in range(8):
        image = sym.act(sym.random(torch.Generator().manual_seed(seed), scalings=True), a)
        assert apart(coset.canonicalize(image, sym).state, coset.canonicalize(a, sym).state) < 1e-12


def test_equal_and_dead_units_do_no_harm() -> None:
    """Unit 1 is unit 4; unit 2 has no weights at all; biases are zero, so weights give the order."""
    model, args, sym = network("relu")
    a = weights(model, 0)
    a["layers.0.bias"].zero_()
    a["layers.0.weight"][1], a["layers.1.weight"][:, 1] = a["layers.0.weight"][4], a["layers.1.weight"][:, 4]
    a["layers.0.weight"][2] = 0.0
    result = coset.canonicalize(a, sym)
    norms = result.state["layers.0.weight"].norm(dim=1)
    assert torch.allclose(norms.sort().values, torch.tensor([0.0, 1, 1, 1, 1, 1], dtype=torch.float64))
    assert torch.allclose(output(model, result.state, args), output(model, a, args), rtol=1e-9)
    for p in itertools.islice(itertools.permutations(range(6)), 0, 720, 60):
        image = sym.act(sym.element({"layers.0": torch.tensor(p)}), a)
        assert apart(coset.canonicalize(image, sym).state, result.state) < 1e-12


def test_factors_do_not_part_equal_keys() -> None:
    """Two units have the same bias once they have norm one, but for rounding."""
    model, _, sym = network("relu")
    a = weights(model, 0)
    norms = a["layers.0.weight"].norm(dim=1)
    a["layers.0.bias"] = 0.3 * norms
    for seed in range(4):
        image = sym.act(sym.random(torch.Generator().manual_seed(seed), scalings=True), a)
        assert apart(coset.canonicalize(image, sym).state, coset.canonicalize(a, sym).state) < 1e-12


@pytest.mark.parametrize("method", ["auto", "weights", "activations"])
def test_a_reference_gives_the_order(method: str) -> None:
    model, args, sym = network("relu")
    inputs = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reference, data = weights(model, 0), (inputs, torch.zeros(200, dtype=torch.long))
    image = sym.act(sym.random(torch.Generator().manual_seed(1), scalings=True), reference)
    result = coset.canonicalize(image, sym, reference, method, model=model, data=data)
    assert torch.allclose(output(model, result.state, args), output(model, image, args), rtol=1e-9)
    itself = coset.canonicalize(reference, sym, reference, method, model=model, data=data)
    assert apart(result.state, itself.state) < 1e-12
    order = itself.element["layers.0"]
    assert torch.equal(order, torch.arange(6))


def test_a_reference_gives_the_order_of_a_population() -> None:
    model, _, sym = network("relu")
    reference = weights(model, 0)
    near = [{name: x + 1e-3 * torch.randn_like(x) for name, x in reference.items()} for _ in range(4)]
    element = sym.random(torch.Generator().manual_seed(2), batch=4, scalings=True)
    result = coset.canonicalize(sym.act(element, states.stack(near)), sym, reference)
    target = coset.canonicalize(reference, sym, reference).state
    for one in states.unstack(result.state):
        assert apart(one, target) < 0.02


def test_float32() -> None:
    model, _, sym = network("cnn")
    a = states.to(weights(model, 0), dtype=torch.float32)
    image = sym.act(sym.random(torch.Generator().manual_seed(1), scalings=True), a)
    result = coset.canonicalize(image, sym)
    assert all(x.dtype == torch.float32 for x in result.state.values())
    assert apart(result.state, coset.canonicalize(a, sym).state) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_bits_do_not_make_units_equal(dtype: torch.dtype) -> None:
    model = zoo.MLP([16, 32, 32, 10], "gelu")
    sym = coset.symmetry(model, (torch.randn(3, 16),))
    a = states.to(states.of(model), dtype=dtype)
    result = coset.canonicalize(a, sym).state
    for k in range(3):
        image = coset.canonicalize(sym.act(sym.random(torch.Generator().manual_seed(k)), a), sym).state
        assert all(torch.equal(image[name], result[name]) for name in result)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e-36),
        (torch.float32, 1e-39),
        (torch.float16, 1e-3),
        (torch.float16, 1e-6),
        (torch.float64, 1e-170),
    ],
)
@pytest.mark.parametrize("bias", [0.0, 0.1, 30.0])
def test_units_with_tiny_weights_stay_finite(dtype: torch.dtype, scale: float, bias: float) -> None:
    """Their factor is taken if it fits the dtype, and left alone if not."""
    model, args, sym = network("relu")
    a = states.to(weights(model, 0), dtype=dtype)
    a["layers.0.weight"][1] *= scale
    a["layers.0.bias"][1] = bias
    result = coset.canonicalize(a, sym).state
    before, after = (output(model, states.to(x, dtype=torch.float64), args) for x in (a, result))
    assert torch.allclose(after, before, rtol=0, atol=20 * torch.finfo(dtype).eps * float(before.abs().max()))
    plain = states.to(weights(model, 1), dtype=dtype)
    pair = coset.canonicalize(states.stack([a, plain]), sym).state
    assert all(torch.equal(pair[name][0], result[name]) for name in result)


def test_the_norm_of_tiny_weights_is_found_without_their_squares() -> None:
    model, _, sym = network("relu")
    a = weights(model, 0)
    a["layers.0.weight"][1] *= 1e-170
    assert torch.allclose(coset.canonicalize(a, sym).state["layers.0.weight"].norm(dim=1), torch.ones(6).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["relu", "tanh", "resnet bn"])
def test_in_few_bits_the_form_is_its_own_and_on_the_manifold(name: str, dtype: torch.dtype) -> None:
    model, _, sym = network(name)
    for seed in range(3):
        a = states.to(weights(model, seed), dtype=dtype)
        result = coset.canonicalize(a, sym).state
        again = coset.canonicalize(result, sym).state
        assert all(torch.equal(again[key], result[key]) for key in result)
        coset.manifold(sym, a).coordinates(result)


def test_conditions_of_an_mlp() -> None:
    _, _, sym = network("relu")
    result = scale_conditions(sym, "scaling", list(sym.axes))
    assert [(c.units, [s.tensor for s in c.slots], c.power) for c in result] == [
        ("layers.0", ["layers.0.weight"], 1.0),
        ("layers.1", ["layers.1.weight"], 1.0),
    ]


ROWS_AND_COLUMNS = """{"groups": {"a": 2, "b": 3}, "tensors": {"w": ["a", "b"], "v": ["a", "b"]},
    "scalings": {"rows": {"units": "a", "members": [["w", 0, 1.0], ["v", 0, -1.0]]},
                 "columns": {"units": "b", "members": [["w", 1, 1.0], ["v", 1, -1.0]]},
                 "flips": {"units": "a", "kind": "sign", "members": [["w", 0, 1], ["v", 0, 1]]},
                 "turns": {"units": "b", "kind": "sign", "members": [["w", 1, 1], ["v", 1, 1]]}}}"""


def test_factors_and_signs_that_come_together_only() -> None:
    """Two factors and two signs on rows and columns of the same weights alone."""
    sym = coset.Symmetry.from_json(ROWS_AND_COLUMNS)
    state = {name: torch.randn(2, 3, dtype=torch.float64) for name in "wv"}
    result = coset.canonicalize(state, sym).state
    for seed in range(5):
        image = sym.act(sym.random(torch.Generator().manual_seed(seed), scalings=True), state)
        assert apart(coset.canonicalize(image, sym).state, result) < 1e-12
    # Least squares: the logarithms of w / v, whose factors are free, have mean zero in each row and column.
    logs = (result["w"].abs() / result["v"].abs()).log()
    assert float(logs.mean(0).abs().max()) < 1e-12 and float(logs.mean(1).abs().max()) < 1e-12
    # The two signs of rows and three of columns are four in effect: the largest four that are free are positive.
    both = torch.stack([result["w"], result["v"]]).flatten(1)
    assert int((both.gather(0, both.abs().argmax(0, keepdim=True)) > 0).sum()) >= 4
    for seed in range(3):
        dead = {"w": state["w"].clone(), "v": state["v"].clone()}
        dead["w"][0], dead["v"][0] = 0.0, 0.0
        image = sym.act(sym.random(torch.Generator().manual_seed(seed), scalings=True), dead)
        assert apart(coset.canonicalize(image, sym).state, coset.canonicalize(dead, sym).state) < 1e-12
    with pytest.raises(coset.SymmetryError, match="'columns', 'rows'"):
        coset.manifold(sym)


@pytest.mark.parametrize(
    "name", ["attention_qk_norm", "llama_half_gqa", "masked_linear", "every_other_shifted", "heads_in_windows"]
)
def test_units_that_share_all_their_weights(name: str) -> None:
    model, args, sym = family(name)
    given = states.of(model)
    result = coset.canonicalize(given, sym)
    assert moves(model, args, result.state) < 1e-9
    images = [sym.act(sym.random(torch.Generator().manual_seed(k), scalings=True), given) for k in range(3)]
    for image in images:
        assert apart(coset.canonicalize(image, sym).state, result.state) < 1e-9
    many = coset.canonicalize(states.stack(images), sym).state
    assert all(apart(one, result.state) < 1e-9 for one in states.unstack(many))


def family(name: str) -> Network:
    """A net that the symmetry is tested on."""
    sys.path.append(str(Path(__file__).parents[1] / "symmetries"))
    from nets import FAMILIES
    from oracle import infer

    torch.manual_seed(0)
    model, args = FAMILIES[name].make()
    if any(isinstance(module, nn.LazyLinear) for module in model.modules()):
        model(*args)
    return infer(model, args, verify=False)


def moves(model: nn.Module, args: tuple[Any, ...], image: State) -> float:
    from oracle import deviation

    return deviation(model, args, image)


def test_refusals() -> None:
    model, _, sym = network("relu")
    a = weights(model, 0)
    with pytest.raises(coset.StateError, match=r"Missing 'layers\.1\.bias'"):
        coset.canonicalize({name: x for name, x in a.items() if name != "layers.1.bias"}, sym)
    with pytest.raises(coset.StateError, match=r"'layers\.0\.weight' has shape"):
        coset.canonicalize({**a, "layers.0.weight": a["layers.0.weight"].T}, sym)
    with pytest.raises(coset.StateError, match="NaN"):
        coset.canonicalize({**a, "layers.0.bias": a["layers.0.bias"] * math.nan}, sym)
    with pytest.raises(coset.StateError, match="leading dimension"):
        coset.canonicalize({**a, "layers.0.bias": a["layers.0.bias"].expand(3, -1)}, sym)
    with pytest.raises(coset.StateError, match="this population is empty"):
        coset.canonicalize({name: x[None][:0] for name, x in a.items()}, sym)
    with pytest.raises(coset.StateError, match="holds whole numbers"):
        coset.canonicalize({name: x.long() for name, x in a.items()}, sym)
    with pytest.raises(coset.StateError, match="not a population"):
        coset.canonicalize(a, sym, states.stack([a, a]))
    pair = states.stack([a, a])
    with pytest.raises(coset.StateError, match=r"3 in 'layers\.0\.bias'"):
        coset.canonicalize({**pair, "layers.0.bias": torch.zeros(3, 6).double()}, sym)
    with pytest.raises(coset.CosetError, match="no method 'nonsense'"):
        coset.canonicalize(a, sym, method="nonsense")


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.c(self.b(self.a(x).relu()).relu()).relu()
        out: Tensor = self.d(h)
        return out


def test_tied_tensors_must_be_equal() -> None:
    model = Tied().double()
    sym = coset.symmetry(model, (torch.randn(3, 4, dtype=torch.float64),), verify=False)
    a = states.of(model)
    copied = {name: x.clone() for name, x in a.items()}
    m = coset.manifold(sym, a)
    result = coset.canonicalize(copied, sym).state
    assert torch.equal(m.coordinates(result), m.coordinates(coset.canonicalize(a, sym).state))
    for use in (
        lambda state: coset.canonicalize(state, sym),
        lambda state: coset.neural_graph(state, sym),
        m.coordinates,
    ):
        with pytest.raises(coset.StateError, match=r"'b\.weight' and 'c\.weight' in the state are tied"):
            use({**result, "c.weight": result["c.weight"] + 1})


@pytest.mark.parametrize("name", ["complex_matrix", "state_space_kernel"])
def test_complex_weights(name: str) -> None:
    """Factors and signs are real, and units are sorted by real and imaginary parts; populations too."""
    model, args, sym = family(name)
    given = states.of(model)
    assert any(given[key].is_complex() for key in sym.axes)
    generator = torch.Generator().manual_seed(3)
    images = [sym.act(sym.random(generator, scalings=True), given) for _ in range(2)]
    result = coset.canonicalize(given, sym)
    assert moves(model, args, result.state) < 1e-9 and apart(result.state, given) > 1e-2
    for image in images:
        assert apart(coset.canonicalize(image, sym).state, result.state) < 1e-9
        assert apart(coset.canonicalize(image, sym, given).state, coset.canonicalize(given, sym, given).state) < 1e-9
    both = coset.canonicalize(states.stack(images), sym).state
    assert all(apart(one, result.state) < 1e-9 for one in states.unstack(both))
    with pytest.raises(coset.StateError, match="coordinates are real"):
        coset.manifold(sym, given)


@pytest.mark.slow
def test_every_family_of_nets() -> None:
    """All nets that the symmetry is tested on: none is refused."""
    sys.path.append(str(Path(__file__).parents[1] / "symmetries"))
    from nets import FAMILIES

    for name, one in FAMILIES.items():
        if one.slow or name == "unpool":  # not traced
            continue
        model, args, sym = family(name)
        given = states.of(model)
        result = coset.canonicalize(given, sym)
        image = sym.act(sym.random(torch.Generator().manual_seed(3), scalings=True), given)
        assert moves(model, args, result.state) < 1e-9, name
        assert apart(coset.canonicalize(image, sym).state, result.state) < 1e-9, name
        assert apart(sym.act(result.element.inverse(), result.state), given) < 1e-9, name
