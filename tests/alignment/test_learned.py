"""Learned matching: every kind of matrix is learned, what comes back is an element, and no worse than its start."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import CosetError, Element, Learned, Match, Symmetry
from coset.alignment import relaxed
from coset.alignment.element_parameters import ElementParameters, scores_at_identity
from coset.assignment.sinkhorn import balanced_from, sinkhorn
from coset.core import state as states
from coset.data import Split, load
from coset.zoo import build, example_input

State = dict[str, Tensor]
SEEN = 5  # of 9 tokens
SPECS = {
    "centred": "gpt:dim=12,depth=1,heads=2,vocab=9,context=6,tied=false",
    "orthogonal": "gpt:dim=12,depth=1,heads=2,vocab=9,context=6,tied=false,norm=rms",
    "phase": "gpt:dim=16,depth=1,heads=4,kv_heads=2,rope=true,swiglu=true,tied=false,norm=rms,vocab=9,context=6",
}


@functools.cache
def network(spec: str) -> tuple[nn.Module, Symmetry]:
    torch.manual_seed(0)
    model = build(spec)
    # Rotary pairs are confirmed by running the model.
    return model, coset.symmetry(model, example_input(model), verify="rope" in spec)


@functools.cache
def random_state(spec: str, seed: int = 0) -> State:
    model, sym = network(spec)
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(x.shape, generator=generator) / x.shape[-1] ** 0.5 if x.dim() > 1 else x
        for name, x in states.of(model).items()
    }
    return coset.fold(state, sym)


@functools.cache
def text(spec: str) -> Split:
    """Tokens, and what a network says next."""
    model, _ = network(spec)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(SEEN, (120, 6), generator=generator)
    with torch.no_grad():
        logits = states.call(model, random_state(spec), (inputs,))
    return Split(inputs, torch.distributions.Categorical(logits=3 * logits).sample())


def near(sym: Symmetry, size: float, seed: int = 1) -> Element:
    """An element whose matrices are near one, and that swaps two units of each set that no matrix mixes."""
    generator = torch.Generator().manual_seed(seed)
    matrices: dict[str, Tensor] = {}
    for group in sym.matrices:
        x = torch.randn(*sym.random(generator, matrices=True).matrices[group.name].shape, generator=generator).double()
        skew = x - x.mT
        if group.kind == "centred":
            skew = skew - skew.mean(-1, keepdim=True)
            skew = skew - skew.mean(-2, keepdim=True)
        step = size * (x if group.kind == "linear" else skew) / group.order**0.5
        matrices[group.name] = torch.linalg.matrix_exp(step)
    return sym.element(matrices=matrices)


def outputs(spec: str, state: State) -> Tensor:
    model, _ = network(spec)
    double = {name: x.double() if x.is_floating_point() else x for name, x in state.items()}
    with torch.no_grad():
        logits: Tensor = states.call(model.double(), double, (text(spec).inputs[:20],))
    model.float()
    return logits


@pytest.mark.parametrize("kind", list(SPECS))
def test_relaxed_elements_act_as_elements_do(kind: str) -> None:
    spec = SPECS[kind]
    _, sym = network(spec)
    assert kind in {group.kind for group in sym.matrices} and "linear" in {group.kind for group in sym.matrices}
    b = {name: x.double() for name, x in random_state(spec).items()}
    g = sym.random(torch.Generator().manual_seed(4), matrices=True)
    plans = {name: relaxed.matrix_of(g, name) for name in g.permutations}
    turns = {
        name: relaxed.MatrixPair(m, torch.linalg.inv(m).mT)
        for name, x in g.matrices.items()
        for m in [x if g.sets[name].over else x.unsqueeze(0)]
    }
    image = relaxed.act(sym, plans, b, turns)
    assert states.allclose(image, sym.act(g, b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "both"), [*((kind, False) for kind in SPECS), ("orthogonal", True)])
def test_matrices_of_every_kind_are_learned(kind: str, both: bool) -> None:
    """A turned copy has the loss of the original only where all matrices are undone."""
    spec = SPECS[kind]
    model, sym = network(spec)
    a = random_state(spec)
    hidden = near(sym, 0.15)
    b = sym.act(hidden, a)
    method = Learned("l2", sym.identity(), both, steps=150, turn_rate=0.02)
    match = coset.align(a, b, sym, method, model)
    assert match.objective > 0.005 * match.identity_objective
    for group in sym.matrices:
        undone = (match.element @ hidden).matrices[group.name]
        one = torch.eye(group.order, dtype=torch.float64)
        before = (hidden.matrices[group.name] - one).norm()
        assert (undone - one).norm() < 0.2 * before, group.name


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", list(SPECS))
def test_what_comes_back_computes_the_same_function(kind: str, both: bool) -> None:
    spec = SPECS[kind]
    model, sym = network(spec)
    a, b = random_state(spec), random_state(spec, 1)
    method = Learned(start="weights", both=both, steps=20, turn_rate=0.1, rate=2.0, batch_size=16)
    match = coset.align(a, b, sym, method, model, text(spec))
    assert any(bool((m - torch.eye(m.shape[-1])).abs().max() > 0.01) for m in match.element.matrices.values())
    moved = sym.act(match.element, {name: x.double() for name, x in b.items()})
    assert torch.allclose(outputs(spec, moved), outputs(spec, b), rtol=1e-10, atol=1e-10)
    for group in sym.matrices:
        m = match.element.matrices[group.name]
        if group.kind != "linear":
            one = torch.eye(group.order, dtype=torch.float64)
            assert torch.allclose(m @ m.mT, one.expand_as(m), atol=1e-12)


def test_a_planted_element_is_learned_where_weights_fail() -> None:
    """Embeddings of tokens that never come up are noise, which is most of what weights see."""
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    a = random_state(spec)
    b = sym.act(near(sym, 0.1), a)
    ends = [dict(state) for state in (a, b)]
    for seed, state in enumerate(ends):
        noise = 30 * torch.randn(9, 12, generator=torch.Generator().manual_seed(seed))
        state["embedding.weight"] = torch.where(torch.arange(9)[:, None] < SEEN, state["embedding.weight"], noise)
    texts: list[str] = []
    method = Learned(start=sym.identity(), steps=80, batch_size=32)
    match = coset.align(*ends, sym, method, model, text(spec), progress=lambda event: texts.append(event.text))
    weights = coset.align(*ends, sym).element
    by_weights, still, learned = (path_loss(spec, a, sym.act(g, b)) for g in (weights, sym.identity(), match.element))
    assert learned < still - 0.3 * (still - path_loss(spec, a, a))
    assert still < by_weights
    assert len(match.history) == match.sweeps == 80
    assert texts[-1].startswith("step 80 of 80") and texts[-1].endswith(" s")


def path_loss(spec: str, a: State, b: State) -> float:
    model, _ = network(spec)
    with torch.no_grad():
        logits = states.call(model, states.lerp(a, b, 0.5), (text(spec).inputs,))
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), text(spec).targets.flatten()))


@pytest.mark.parametrize("objective", ["random", "midpoint", "l2"])
def test_it_is_never_worse_than_its_start(objective: Any) -> None:
    """Steps that are much too long lead away from an exact match."""
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    a = random_state(spec)
    start = near(sym, 0.05).inverse()
    b = sym.act(start.inverse(), a)

    def run(**settings: float) -> Match:
        method = Learned(objective, start, steps=12, batch_size=32, **settings)
        return coset.align(a, b, sym, method, model, text(spec))

    still, far = run(turn_rate=1e-9, rate=1e-9), run(turn_rate=0.5, rate=50.0)
    assert far.objective >= still.objective
    if objective == "l2":
        for name, m in start.matrices.items():
            assert torch.equal(far.element.matrices[name], m)


def test_elements_are_judged_on_examples_that_are_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    seen: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    inner = coset.alignment.learned.PathLoss.__call__

    def watch(self: Any, a: State, b: State, t: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        seen[torch.is_grad_enabled()] |= {tuple(row) for row in inputs.tolist()}
        return inner(self, a, b, t, inputs, targets)

    monkeypatch.setattr(coset.alignment.learned.PathLoss, "__call__", watch)
    start = Learned(start=sym.identity(), steps=12, batch_size=20)
    coset.align(random_state(spec), random_state(spec, 1), sym, start, model, text(spec))
    assert len(seen[True]) > 100 and len(seen[False]) == 12
    assert not seen[True] & seen[False]


def test_a_start_is_an_element_a_match_a_method_or_its_name() -> None:
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    a, b = random_state(spec), random_state(spec, 1)
    weights = coset.align(a, b, sym)
    starts: list[Any] = [weights.element, weights, "weights", coset.align]
    first = [
        coset.align(a, b, sym, Learned("l2", start, steps=1, turn_rate=1e-9), model).element for start in starts[:3]
    ]
    for element in first[1:]:
        assert states.allclose(sym.act(element, b), sym.act(first[0], b), rtol=1e-4, atol=1e-5)
    with pytest.raises(CosetError, match="function is no start"):
        Learned(start=starts[3])


def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    a, b = random_state(spec), random_state(spec, 1)

    class KilledError(Exception):
        pass

    def run(folder: str, kill_at: int | None, **settings: Any) -> Match:
        def listen(event: coset.Event) -> None:
            if event.unit == "step" and event.done == kill_at:
                raise KilledError

        method = Learned(steps=40, batch_size=32, out=tmp_path / folder, checkpoint_seconds=0, **settings)
        return coset.align(a, b, sym, method, model, text(spec), progress=listen)

    whole = run("whole", None)
    with pytest.raises(KilledError):
        run("parts", 30)
    parts = run("parts", None)
    assert parts.history == whole.history
    assert parts.objective == whole.objective
    for name, m in whole.element.matrices.items():
        assert torch.equal(parts.element.matrices[name], m)
    for name, p in whole.element.permutations.items():
        assert torch.equal(parts.element.permutations[name], p)
    with pytest.raises(CosetError, match="another turn_rate"):
        run("parts", None, turn_rate=0.01)


def test_norms_use_the_statistics_of_the_batch_where_asked() -> None:
    digits = load("digits", flatten=True).train
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)).eval()
    sym = coset.symmetry(model, (digits.inputs[:4],))
    a, before = states.of(model), states.of(model)
    a["1.running_var"] = torch.full((8,), 100.0)
    ends: list[float] = []
    for repair in (False, True):
        method = Learned(start=sym.identity(), steps=1, repair=repair)
        ends.append(coset.align(a, a, sym, method, model, digits).objective)
        assert not model[1].training and states.allclose(states.of(model), before)
    assert abs(ends[0] - ends[1]) > 0.01


def test_few_sweeps_from_the_last_potentials_are_the_sinkhorn_operator() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 7, 7, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, 7, 7, generator=generator, dtype=torch.float64)
    columns = torch.zeros(3, 7, dtype=torch.float64)
    for _ in range(20):
        _, columns = balanced_from(scores, columns, 0.3, 10)
    gradients = []
    for operator in (lambda x: sinkhorn(x, 0.3), lambda x: balanced_from(x, columns, 0.3, 200)[0]):
        x = scores.clone().requires_grad_()
        plan = operator(x)
        (gradient,) = torch.autograd.grad((plan * weights).sum(), x)
        gradients.append((plan.detach(), gradient))
    for exact, swept in zip(*gradients, strict=True):
        assert torch.allclose(exact, swept, atol=1e-8)


@pytest.mark.parametrize("kind", list(SPECS))
def test_steps_stay_on_the_group(kind: str) -> None:
    """What the loss sees of matrices after many steps is the image under the element that comes back."""
    spec = SPECS[kind]
    _, sym = network(spec)
    b = random_state(spec)
    parameters = ElementParameters(sym, scores_at_identity(b, b, sym, 3.0), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 31):
        gradients = [torch.randn(x.shape, generator=generator) for x in parameters.trained]
        parameters.step(gradients, torch.tensor(0.0), torch.tensor(0.2), torch.tensor(float(number)))
    image = {name: x.detach() for name, x in parameters.image(b, torch.tensor(0.03)).items()}
    element = parameters.element()
    assert all(bool((m - torch.eye(m.shape[-1])).abs().max() > 0.1) for m in element.matrices.values())
    assert states.allclose(image, sym.act(element, b), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "middle"}, "no objective 'middle'"),
        ({"start": "sinkhorn"}, "no start 'sinkhorn'"),
        ({"start": "nowhere"}, "no start 'nowhere'; choose auto, weights"),
        ({"start": 3}, "int is no start"),
        ({"turn_rate": 0.0}, "turn_rate of Learned is 0"),
        ({"turn_rate": 1.0}, "no more than 0.5"),
        ({"last_temperature": float("nan")}, "last_temperature of Learned is nan"),
        ({"precision": "float8"}, "no precision 'float8'"),
        ({"checkpoint_seconds": -1.0}, "must not be negative"),
        ({"objective": len, "both": True}, "knows one end"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        Learned(**settings)


def test_data_of_one_example_cannot_be_split() -> None:
    spec = SPECS["orthogonal"]
    model, sym = network(spec)
    one = text(spec).inputs[:1], text(spec).targets[:1]
    with pytest.raises(CosetError, match="give at least 2"):
        coset.align(random_state(spec), random_state(spec, 1), sym, "learned", model, one)
