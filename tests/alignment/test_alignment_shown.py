"""What matches show of themselves, and the methods that have a name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alignment_nets import network, random_state

import coset
from coset import CosetError
from coset.alignment.align import as_method
from coset.alignment.methods import METHODS
from coset.core.show import LINES, WIDTH


@pytest.mark.parametrize("kind", ["one", "starts", "many", "population"])
def test_matches_are_tables_of_few_lines(kind: str) -> None:
    model, sym = network("resnet")
    members = [random_state(model, k) for k in range(15)]
    match: Any = {
        "one": lambda: coset.align(members[0], members[1], sym),
        "starts": lambda: coset.align(members[0], members[1], sym, restarts=2),
        "many": lambda: coset.align_many(members, sym, reference=0),
        "population": lambda: coset.align_many(coset.state.stack(members), sym),
    }[kind]()
    lines = repr(match).split("\n")
    assert lines[0].startswith("Match") and "objective before" in lines[1] and "objective after" in lines[2]
    assert len(lines) <= LINES and all(len(line) <= WIDTH for line in lines)
    page = match._repr_html_()
    assert "<table>" in page and "seconds" in page


def test_a_match_says_which_groups_move() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    (first, _) = (group.name for group in sym.groups)
    swap = torch.arange(8)
    swap[[0, 3]] = swap[[3, 0]]
    still, one = (coset.align(a, sym.act(g, a), sym) for g in (sym.identity(), sym.element({first: swap})))
    assert "groups that move  0 of 2" in repr(still) and "groups that move  1 of 2" in repr(one)


def test_every_listed_method_is_there_under_its_name() -> None:
    for name in METHODS:
        method = as_method(name)
        assert isinstance(method, coset.AlignMethod) and method.name == name
        assert type(method)() == method and len(repr(method)) < WIDTH
    with pytest.raises(CosetError, match=f"no method 'best'; choose from {', '.join(METHODS)}"):
        as_method("best")


def test_a_method_of_ones_own_is_a_class() -> None:
    class Towards(coset.Cost):
        name = "towards"
        symmetric = True

        def scores(self, task: Any) -> dict[str, torch.Tensor]:
            return {group.name: torch.eye(group.size).roll(1, 1) for group in task.sym.groups}

    model, sym = network("mlp")
    a, b = random_state(model, 0), random_state(model, 1)
    match = coset.align(a, b, sym, Towards())
    assert match.objective == sum(group.size for group in sym.groups) and match.identity_objective == 0
    with pytest.raises(CosetError, match="There is no method 3"):
        coset.align(a, b, sym, 3)  # type: ignore[arg-type]


def test_progress_tells_events() -> None:
    model, sym = network("mlp")
    members = [random_state(model, k) for k in range(3)]
    data = torch.randn(20, 6), torch.zeros(20, dtype=torch.long)
    calls = {
        "align": (lambda tell: coset.align(members[0], members[1], sym, progress=tell), {"group", "sweep"}),
        "star": (lambda tell: coset.align_many(members, sym, reference=0, progress=tell), {"network"}),
        "joint": (lambda tell: coset.align_many(members, sym, progress=tell), {"network", "sweep"}),
        "activations": (
            lambda tell: coset.align(*members[:2], sym, "activations", model, data, progress=tell),
            {"stage", "group"},
        ),
        "merge": (
            lambda tell: coset.merge(members, sym, model=model, data=data, progress=tell),
            {"network", "sweep", "stage"},
        ),
    }
    for name, (call, units) in calls.items():
        events: list[coset.Event] = []
        call(events.append)
        assert {event.unit for event in events} == units, name
        assert all(event.text and (event.total is None or event.done <= event.total) for event in events)


def test_modules_are_taken_where_states_are() -> None:
    model, sym = network("mlp")
    other = random_state(model, 1)
    by_module, by_state = (coset.align(x, other, sym) for x in (model, coset.state.of(model)))
    assert by_module.objective == by_state.objective
    assert coset.align_many([model, other], sym, reference=model).objective > 0
    assert coset.state.allclose(coset.merge([model, model], sym), coset.state.of(model))
