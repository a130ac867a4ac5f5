"""Each figure of a paper at its smallest scale: it runs, its record is complete, and its picture is drawn."""

import importlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from coset_papers import Settings, reproduce


def figures(paper: str, quick: Collection[str], elsewhere: Collection[str] = ()) -> list[Any]:
    """All figures of a paper but those that other tests run; what is not quick is a slow test."""
    names = importlib.import_module(f"coset_papers.{paper}").FIGURES
    assert {*quick, *elsewhere} <= {*names}
    marks = {name: () if name in quick else (pytest.mark.slow,) for name in names if name not in elsewhere}
    return [pytest.param(f"{paper}/{name}", marks=marks[name], id=name) for name in marks]


def check(name: str, out: Path) -> dict[str, Any]:
    """Reproduce a figure; its record."""
    said: list[str] = []
    record = reproduce(name, Settings(out=out, say=said.append))
    stem = out / f"{name.replace('/', '-')}-smoke"
    assert record == json.loads(stem.with_suffix(".json").read_text())
    assert stem.with_suffix(".png").stat().st_size > 10_000
    assert record["claims"] and all(claim["ours"] != "" for claim in record["claims"])
    return record
