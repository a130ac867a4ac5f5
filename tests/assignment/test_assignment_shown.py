"""What assignments show of themselves: few lines, with the numbers that matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coset import assignment
from coset.core.show import LINES, WIDTH

COST = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
OBJECTS: dict[str, tuple[Any, str]] = {
    "assignment": (assignment.solve(COST), "Assignment of 40 x 40"),
    "duals": (assignment.solve(COST).duals, "Duals of 40 x 40"),
    "batch": (assignment.solve_many(COST.expand(1000, 40, 40)), "1,000 assignments of 40 x 40"),
    "empty batch": (assignment.solve_many(COST.expand(0, 40, 40)), "0 assignments of 40 x 40"),
    "bounds": (assignment.permanent_bounds(COST), "Bounds of 1 permanent"),
    "many bounds": (assignment.permanent_bounds(COST.expand(30, 40, 40)), "Bounds of 30 permanents"),
    "birkhoff": (assignment.birkhoff(assignment.sinkhorn(COST), 30), "Birkhoff decomposition of 40 x 40 in 30 terms"),
    "permutations": (assignment.sample_permutations(COST.expand(2, 40, 40), 5), "5 permutations of 40 for each of 2"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_reprs_are_short(name: str) -> None:
    thing, title = OBJECTS[name]
    lines = repr(thing).split("\n")
    assert lines[0].startswith(title)
    assert 1 < len(lines) <= LINES and all(len(line) <= WIDTH for line in lines)
    assert "<table>" in thing._repr_html_() and title in thing._repr_html_()


def test_an_assignment_shows_its_value() -> None:
    best = assignment.solve(torch.eye(3))
    assert repr(best).split("\n")[1:] == [
        "  value                3",
        "  gap                  0",
        "  columns of the rows  0, 1, 2",
    ]
