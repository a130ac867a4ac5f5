"""Populations: parts of them, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors import safe_open
from torch import Tensor

import coset
from coset import zoo
from coset.core.checkpoint import save_state, write_stream
from coset.core.errors import StateError
from coset.populations.population import Population


def make(n: int = 5, starts: bool = True, tied: bool = False) -> Population:
    generator = torch.Generator().manual_seed(n)
    states = {"a.weight": torch.randn(n, 3, 2, generator=generator), "b": torch.randn(n, 4, generator=generator)}
    states["steps"] = torch.arange(n)
    if tied:
        states["again"] = states["b"]
    began = {name: x + 1 for name, x in states.items()}
    labels = {"run": torch.arange(n).float(), "task": torch.randn(n, 3, generator=generator).double()}
    return Population(states, began if starts else None, labels, {"model": "mlp:2-3", "numbers": [1, 2.5, None]})


def same(a: Population, b: Population) -> bool:
    def equal(x: dict[str, Tensor] | None, y: dict[str, Tensor] | None) -> bool:
        if x is None or y is None:
            return x is y
        return list(x) == list(y) and all(x[k].dtype == y[k].dtype and torch.equal(x[k], y[k]) for k in x)

    return all(equal(getattr(a, part), getattr(b, part)) for part in ("states", "starts", "labels"))


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.booleans(), min_size=5, max_size=5))
def test_an_index_takes_rows_of_every_tensor(places: list[int], mask: list[bool]) -> None:
    population = make()
    for index in (torch.tensor(places, dtype=torch.int64), torch.tensor(mask), slice(1, 4), slice(None, None, 2)):
        part = population[index]
        rows = torch.arange(5)[index].tolist()
        assert len(part) == len(rows) and part.about == population.about
        assert part.starts is not None and population.starts is not None
        for some, whole in (
            (part.states, population.states),
            (part.starts, population.starts),
            (part.labels, population.labels),
        ):
            assert all(torch.equal(some[k][i], whole[k][row]) for k in whole for i, row in enumerate(rows))


@pytest.mark.parametrize("starts", [True, False])
def test_parts_together_are_the_whole(starts: bool) -> None:
    population = make(5, starts)
    parts = [population[:2], population[2:2], population[2:]]
    assert same(Population.concat(parts), population)
    other = Population(population.states, population.starts, population.labels, {"model": "other"})
    assert Population.concat([population, other]).about == {"parts": [population.about, other.about]}


@pytest.mark.parametrize("n", [0, 5])
@pytest.mark.parametrize("starts", [True, False])
def test_files_keep_everything(tmp_path: Path, n: int, starts: bool) -> None:
    population = make(n, starts)
    population.save(tmp_path / "p.safetensors")
    part = Population.load(tmp_path / "p.safetensors")
    assert same(part, population) and part.about == population.about
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        names = {"state/a.weight", "state/b", "state/steps", "label/run", "label/task"}
        assert set(file.keys()) == names | ({"start/a.weight", "start/b", "start/steps"} if starts else set())
        assert json.loads(file.metadata()["coset.population"])["about"] == population.about


def test_tied_names_stay_tied(tmp_path: Path) -> None:
    population = make(tied=True)
    population.save(tmp_path / "p.safetensors")
    for one in (
        population[1:],
        Population.concat([population, population]),
        Population.load(tmp_path / "p.safetensors"),
    ):
        assert one.states["again"] is one.states["b"] and list(one.states) == list(population.states)


def test_of_solutions() -> None:
    states = [{"w": torch.randn(3), "b": torch.randn(2)} for _ in range(4)]
    population = Population.of([coset.Dirac(states[0]), coset.Ensemble(states[1:3]), coset.Dirac(states[3])])
    assert population.labels["run"].tolist() == [0, 1, 1, 2] and population.starts is None
    for k, state in enumerate(states):
        assert all(torch.equal(population.states[name][k], x) for name, x in state.items())
    net = zoo.build("mlp:4-3-2")
    x = torch.randn(20, 4)
    part = coset.fit(net, (x, (x[:, 0] > 0).long()), coset.MAP(epochs=1), replicas=3)
    assert len(Population.of(part)) == 3


@pytest.mark.parametrize("kind", ["population", "tensors", "ensemble", "list"])
def test_whatever_holds_networks_is_a_population(kind: str) -> None:
    nets = [zoo.build("mlp:4-3-2") for _ in range(4)]
    ensemble = coset.Ensemble([net.state_dict() for net in nets])
    own = Population(ensemble.population)
    things = {
        "population": own,
        "tensors": ensemble.population,
        "ensemble": ensemble,
        "list": [nets[0], dict(nets[1].state_dict()), coset.Dirac(nets[2].state_dict()), nets[3]],
    }
    split = (torch.randn(20, 4), torch.randint(2, (20,)))
    assert coset.state.allclose(Population.of(things[kind]).states, own.states, 0, 0)  # type: ignore[arg-type]
    expected = coset.scores(own, nets[0], split).loss
    assert torch.equal(coset.scores(things[kind], nets[0], split).loss, expected)  # type: ignore[arg-type]


def test_to_a_device() -> None:
    assert same(make().to("cpu"), make()) and str(make()) == "Population(5 networks of 10 weights, labels run, task)"


def bad(**changes: Any) -> Any:
    parts: dict[str, Any] = {"states": make().states, "starts": make().starts, "labels": make().labels, "about": {}}
    return lambda: Population(**{**parts, **changes})


B = make().states
CASES = {
    "no size": (bad(states={"w": torch.zeros(())}, starts=None), "no dimensions"),
    "two sizes": (bad(states={"w": torch.zeros(2), "v": torch.zeros(3)}, starts=None), "one size in all tensors"),
    "nan": (bad(states={**B, "b": B["b"] * torch.nan}), "'b' in the population has 20 NaN"),
    "starts": (bad(starts={"b": B["b"]}), "Missing 'a.weight', 'steps' in the starts"),
    "shape": (bad(starts={**B, "b": B["b"][:4]}), "'b' in the starts of the population has shape"),
    "short label": (bad(labels={"loss": torch.zeros(4)}), r"Label 'loss' is torch.float32 \(4,\)"),
    "integer label": (bad(labels={"loss": torch.zeros(5).long()}), "Label 'loss' is torch.int64"),
    "nan label": (bad(labels={"loss": torch.full((5,), torch.nan)}), "'loss' in the labels"),
    "no json": (bad(about={"model": object()}), "plain JSON"),
    "nan about": (bad(about={"rate": float("nan")}), "plain JSON"),
    "number": (lambda: make()[2], "indexed by a slice"),
    "beyond": (lambda: make()[torch.tensor([7])], "5 networks cannot be indexed"),
    "no parts": (lambda: Population.concat([]), "at least one part"),
    "other names": (lambda: Population.concat([make(), make(tied=True)]), "Unknown 'again' in part 1"),
    "other starts": (lambda: Population.concat([make(), make(starts=False)]), "starts are known"),
    "a number": (lambda: Population.of(5), "A int is no population: give one"),
    "word": (
        lambda: coset.scores("nets", zoo.build("mlp:4-3-2"), (torch.ones(1, 4), torch.zeros(1))),
        "A str is no population",
    ),
    "no solutions": (lambda: Population.of([]), "at least one solution"),
    "gaussian": (lambda: Population.of([coset.Gaussian({"w": torch.zeros(2)}, {})]), "Solution 0 is a Gaussian"),
    "name": (lambda: make().save("population.pt"), "must end in .safetensors"),
    "nowhere": (lambda: make().save("/nowhere/at/all.safetensors"), "cannot be written"),
    "dtype": (
        lambda: Population({"w": torch.zeros(2, dtype=torch.complex128)}).save("w.safetensors"),
        "'state/w' .* cannot be stored",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals_say_what_is_wrong(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    act, message = CASES[case]
    with pytest.raises(StateError, match=message):
        act()
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_population(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    make().save(whole)
    with pytest.raises(StateError, match="no file or folder"):
        Population.load(tmp_path / "absent.safetensors")
    half = tmp_path / "half.safetensors"
    half.write_bytes(whole.read_bytes()[:-50])
    with pytest.raises(StateError, match=r"half.safetensors is not a complete safetensors file"):
        Population.load(half)
    plain = tmp_path / "plain.safetensors"
    save_state({"w": torch.zeros(3)}, plain)
    with pytest.raises(StateError, match=r"plain.safetensors holds no population"):
        Population.load(plain)
    for description in ("{}", "no json", '{"owners": {"w": "w"}, "starts": true, "labels": [], "about": {}}'):
        save_state({"state/w": torch.zeros(3)}, plain, {"coset.population": description})
        with pytest.raises(StateError, match=r"plain.safetensors holds a population that cannot be read"):
            Population.load(plain)
    sick = {"state/w": torch.tensor([0.0, torch.inf])}
    text = json.dumps({"owners": {"w": "w"}, "starts": False, "labels": [], "about": {}})
    write_stream(plain, {"state/w": (torch.float32, (2,))}, sick.__getitem__, {"coset.population": text})
    with pytest.raises(StateError, match=r"plain.safetensors holds a population .*'w' in the population has 1 NaN"):
        Population.load(plain)
