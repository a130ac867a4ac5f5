"""`coset flow evaluate` goes on from what was measured before it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_populations import Run, report, write

from coset import data
from coset.cli import population_evaluator
from coset.data import DataSet, Split

WORDS = ("flow", "evaluate", "samples.safetensors", "--against", "nets.safetensors", "--fresh", "fresh.safetensors")
DATA = ("--data", "breast-cancer")


@pytest.fixture(autouse=True)
def populations(folder: Path) -> None:
    for seed, (name, count) in enumerate({"samples": 6, "nets": 12, "fresh": 5}.items()):
        write(folder, name, count, seed)


def figures(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("populations", "novelty")}


def test_what_was_measured_is_read(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report(run(*WORDS, *DATA, "--json"))
    assert whole["parts_read"] == 0

    def stopped(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(population_evaluator, "diversity", stopped)
        result = run(*WORDS, *DATA, "--work", "work")
    assert result.exit_code == 130 and "stopped: the same command goes on in --work" in result.stderr
    assert len(list((folder / "work").iterdir())) == 4
    again = report(run(*WORDS, *DATA, "--work", "work", "--json"))
    assert again["parts_read"] == 4 and figures(again) == figures(whole)
    assert "14 parts measured before" in run(*WORDS, *DATA, "--work", "work", "--html", "page.html").stdout
    assert "data:image/svg+xml" in (folder / "page.html").read_text()


def test_whoever_stops_without_a_folder_hears_of_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(population_evaluator, "pair_barriers", stopped)
    result = run(*WORDS, *DATA)
    assert result.exit_code == 130 and "with --work FOLDER it could go on" in result.stderr


TANH = ("--model", "coset.zoo:MLP", "--args", json.dumps({"sizes": [30, 4, 2], "activation": "tanh"}))


@pytest.mark.parametrize("more", [("--seed", 1), ("--pairs", 3), ("--count", 5), TANH])
def test_what_differs_is_measured_anew(run: Run, folder: Path, more: tuple[object, ...]) -> None:
    words = (*WORDS, *DATA, "--json")
    report(run(*words, "--work", "work"))
    alone, resumed = report(run(*words, *more)), report(run(*words, *more, "--work", "work"))
    assert figures(resumed) == figures(alone)
    assert resumed["parts_read"] == (4 if more[0] == "--count" else 0)  # there are five fresh networks in any case


def test_another_population_of_the_same_name(run: Run, folder: Path) -> None:
    report(run(*WORDS, *DATA, "--work", "work", "--json"))
    write(folder, "samples", 6, 7)
    alone, resumed = report(run(*WORDS, *DATA, "--json")), report(run(*WORDS, *DATA, "--work", "work", "--json"))
    assert figures(resumed) == figures(alone) and resumed["parts_read"] == 8  # of the other two populations


def test_damaged_parts_and_folders(run: Run, folder: Path) -> None:
    words = (*WORDS, *DATA, "--work", "work", "--json")
    report(run(*words))
    part = next((folder / "work").glob("measured-barriers-*.json"))
    part.write_text(part.read_text()[:40])
    result = run(*words)
    assert result.exit_code == 2 and f"{part.name} is not JSON" in result.stderr and "remove it" in result.stderr
    part.write_text("[]")
    assert f"{part.name} is [] and no JSON object: remove it" in run(*words).stderr
    part.unlink()
    assert report(run(*words))["parts_read"] == 13
    (folder / "file").write_text("")
    result = run(*WORDS, *DATA, "--work", "file", "--json")
    assert result.exit_code == 2 and "--work file cannot be written" in result.stderr


def test_a_refused_run_leaves_no_folder(run: Run, folder: Path) -> None:
    write(folder, "samples", 1, 0)
    write(folder, "nets", 1, 1)
    result = run(*WORDS[:5], *DATA, "--work", "work")
    assert result.exit_code == 2 and "two training networks" in result.stderr
    assert not (folder / "work").exists()


def test_a_regression(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(torch.randn(20, 1), torch.randn(20, 1))
    sets = DataSet("snelson", split, split, None, None, None)
    monkeypatch.setattr(data, "load", lambda *args, **more: sets)
    for seed, name in enumerate(("samples", "nets")):
        write(folder, name, 4, seed, "mlp:1-3-1")
    words = (*WORDS[:5], "--data", "snelson", "--noise", 0.5, "--work", "work", "--json")
    first, again = report(run(*words)), report(run(*words))
    assert (first["parts_read"], again["parts_read"]) == (0, 7) and figures(first) == figures(again)
    assert report(run(*WORDS[:5], "--data", "snelson", "--noise", 0.4, "--work", "work", "--json"))["parts_read"] == 0
