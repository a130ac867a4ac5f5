"""The rules of the house: each names the places that break it. `python -m tools.house` prints them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import house, import_graph

ROOT = Path(__file__).resolve().parents[1]


BROKEN = house.rules()


@pytest.mark.parametrize("rule", BROKEN)
def test_rule(rule: str) -> None:
    places = BROKEN[rule]
    assert not places, f"{rule}:\n" + "\n".join(places)


def test_every_folder_is_a_room_of_the_plan() -> None:
    folders = {path.name for path in (ROOT / "src/coset").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(import_graph.ROOMS)


def test_files_of_the_floor_plan_are_there() -> None:
    plan = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = "|".join(import_graph.ROOMS)
    for file in re.findall(rf"`((?:{rooms})/[a-z_/]+(?:\.py)?)`", plan):
        assert (ROOT / "src/coset" / file).exists(), file
    rows = re.findall(r"^\| `(\w+)` \| .* \| `(\w+\.py)`", plan, flags=re.MULTILINE)
    assert {room for room, _ in rows} == set(import_graph.ROOMS)
    for room, file in rows:
        assert (ROOT / "src/coset" / room / file).exists(), f"{room}/{file}"


def test_an_edge_against_the_order_is_seen_however_it_is_written(tmp_path: Path) -> None:
    package = tmp_path / "coset"
    for name in ("core", "paths"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "paths/barrier.py").write_text("import coset.core\n")
    (package / "core/eager.py").write_text("import coset.paths.barrier\n")
    (package / "core/lazy.py").write_text("def f():\n    from coset.paths import barrier\n")
    (package / "core/typed.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from coset.paths.barrier import Barrier\n"
    )
    edges = import_graph.imports(package)
    assert [line.split(" (")[1] for line in import_graph.violations(edges)] == [
        "eager, line 1)",
        "lazy, line 2)",
        "typing, line 3)",
    ]


def test_a_ring_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "coset"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (package / f"{name}.py").write_text(f"import coset.{other}\n")
    assert import_graph.cycles(import_graph.imports(package)) == [["coset.a", "coset.b", "coset.c"]]


def test_participles_and_long_calls_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/file.py").write_text(
        "def f(given):\n    self.kept = found = g(1, 2, 3, 4, 5, 6, 7, 8)\n    g(*found)\n"
    )
    assert house.participles("src") == ["src/file.py:1: given", "src/file.py:2: kept", "src/file.py:2: found"]
    assert house.long_calls("src") == ["src/file.py:2: g takes 8"]
