"""How rules are found: by their file, by the name of the op, and from outside of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import tape
from coset.symmetries import rules


@torch.library.custom_op("cosettests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x + x


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("cosettests::add", mutates_args=())
def add(x: Tensor) -> Tensor:
    """Has the name of an op of PyTorch, and does not commute with permutations."""
    return x + torch.arange(x.shape[-1])


@add.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self, op: object) -> None:
        super().__init__()
        self.a, self.b, self.op = nn.Linear(3, 5), nn.Linear(5, 2), op

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.op(self.a(x)))  # type: ignore[operator]
        return out


@pytest.fixture
def registry() -> Iterator[dict[str, tape.Rule]]:
    before = dict(tape.RULES)
    yield tape.RULES
    tape.RULES.clear()
    tape.RULES.update(before)


def sizes(op: object) -> list[int]:
    return [group.size for group in coset.symmetry(Net(op), torch.randn(2, 3)).groups]


def test_every_file_of_rules_is_loaded() -> None:
    files = [file.stem for file in Path(rules.__file__).parent.glob("*.py") if file.stem != "__init__"]
    modules = {rule.__module__ for rule in tape.RULES.values()}  # of other tests, too
    homes = {name.rpartition(".")[2] for name in modules if name.startswith(f"{rules.__name__}.")}
    assert homes == set(files) and len(files) > 10


def test_a_new_file_is_enough(tmp_path: Path, registry: dict[str, tape.Rule], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    code = "from coset.symmetries.tape import rule\n\n@rule('brand_new')\ndef new(call):\n    return None\n"
    (tmp_path / "a_new_family.py").write_text(code)
    spec = rules.__spec__
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(rules)
    assert registry["brand_new"].__module__ == "coset.symmetries.rules.a_new_family"


def test_an_op_of_another_library_gets_a_rule_from_outside(registry: dict[str, tape.Rule]) -> None:
    assert sizes(double) == []

    @tape.rule("cosettests::double")
    def twice(call: tape.Call) -> tape.Value:
        return call.tape.map(call.tensor("x"), tape.LINEAR)

    assert sizes(double) == [5]


def test_an_op_of_another_library_takes_no_rule_of_pytorch() -> None:
    sym = coset.symmetry(Net(add), torch.randn(2, 3))
    assert not sym.groups and {f.op for f in sym.fixed} >= {"cosettests::add"}


def test_a_wrong_rule_from_outside_is_caught(registry: dict[str, tape.Rule]) -> None:
    @tape.rule("cosettests::add")
    def wrong(call: tape.Call) -> tape.Value:
        return call.tape.map(call.tensor("x"), tape.NONLINEAR)

    with pytest.raises(coset.SymmetryError, match=r"the rule of cosettests::add in .* is wrong"):
        sizes(add)


def test_two_rules_for_one_op_are_refused(registry: dict[str, tape.Rule]) -> None:
    with pytest.raises(coset.SymmetryError, match="'linear' has a rule already, linear of coset"):

        @tape.rule(["mine", "linear"])
        def other(call: tape.Call) -> tape.Value:
            return call.tensor("x")
