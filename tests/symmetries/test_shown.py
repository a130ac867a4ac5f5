"""Every object of the room shows itself in at most twelve lines of at most 120 characters, and as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import coset
from coset import zoo
from coset.core.show import LINES, WIDTH


def objects(name: str, folder: Path) -> list[Any]:
    net = zoo.build(name)
    sym = coset.symmetry(net, zoo.example_input(net))
    generator = torch.Generator().manual_seed(0)
    elements = [sym.identity(), sym.random(generator, scalings=True), sym.random(generator, batch=3)]
    coset.save_state(net, folder / "net.safetensors")
    state = coset.open_state(folder / "net.safetensors")
    return [sym, sym.verification, *sym.groups, *sym.scalings, *sym.fixed, *elements, state]


@pytest.mark.parametrize("name", ["resnet20", "vit", "gpt"])
def test_everything_shows_itself_in_a_few_lines(name: str, tmp_path: Path) -> None:
    for thing in objects(name, tmp_path):
        lines = repr(thing).splitlines()
        assert 1 <= len(lines) <= LINES and max(map(len, lines)) <= WIDTH, thing
        if hasattr(thing, "_repr_html_"):
            assert thing._repr_html_().startswith("<table>")


def test_a_symmetry_says_what_moves_what_is_fixed_and_how_it_was_verified() -> None:
    net = zoo.build("mlp:64-32-10")
    sym = coset.symmetry(net, torch.randn(2, 64))
    lines = repr(sym).splitlines()
    assert lines[0] == "Symmetry: 1 group, 10^35.4 permutations, 1 scaling"
    assert lines[1].split() == ["1", "group", "layers.0", "32", "layers.0.weight:0,", "layers.0.bias:0,", "..."]
    assert lines[2].split() == ["1", "scaling", "layers.0", "32", "exact"]
    assert lines[3].split() == ["1", "axis", "fixed", "input", "model", "input"]
    assert lines[-1].startswith("  check") and "verified in float32" in lines[-1]
    assert repr(sym.groups[0]).splitlines()[0] == "Group layers.0: 32 units in any order"
    assert repr(coset.Symmetry({}, {})).splitlines()[-1].split() == ["check", "not", "verified"]


def test_rows_that_do_not_fit_are_counted_and_a_notebook_has_all() -> None:
    groups = {f"u{k}": k + 2 for k in range(40)}
    raw = {"groups": groups, "tensors": {f"{name}.w": [name] for name in groups}}
    sym = coset.Symmetry.from_json(json.dumps(raw))
    assert "... and 36 more rows of groups" in repr(sym) and "u39" not in repr(sym)
    assert "u39" in sym._repr_html_() and "more rows" not in sym._repr_html_()


def test_an_element_says_how_much_it_moves() -> None:
    sym = coset.Symmetry.from_json('{"groups": {"u": 4}, "tensors": {"w": ["u"]}}')
    assert repr(sym.identity()) == "Element: one element, the identity"
    lines = repr(sym.element({"u": torch.tensor([1, 0, 2, 3])})).splitlines()
    assert lines[0] == "Element: one element"
    assert lines[1].split() == ["u", "moves", "2", "of", "4", "units", "1,", "0,", "2,", "3"]
    assert repr(sym.random(batch=5)).startswith("Element: 5 elements")


def test_notes_are_shown_and_kept_in_files() -> None:
    notes = [f"note {k}" for k in range(40)]
    raw = {"groups": {"u": 4}, "tensors": {"w": ["u"]}, "notes": notes}
    sym = coset.Symmetry.from_json(json.dumps(raw))
    assert list(coset.Symmetry.from_json(sym.to_json()).notes) == notes
    assert "note 0" in repr(sym) and "note 39" in sym._repr_html_() and len(repr(sym).splitlines()) <= LINES
    with pytest.raises(coset.SymmetryError, match="'notes' must be a list of sentences"):
        coset.Symmetry.from_json(json.dumps({**raw, "notes": [1]}))
