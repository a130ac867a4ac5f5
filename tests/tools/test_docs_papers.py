"""The page of papers says what the records say, with the command beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coset.core.errors import CosetError
from tools.docs_papers import papers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "papers/results/gelberg2024-fig2-paper.json").read_text())
    return content


def results(folder: Path, *records: dict[str, Any]) -> Path:
    for k, record in enumerate(records):
        (folder / f"{k}.json").write_text(json.dumps(record))
    return folder


def test_claims_with_their_verdicts(tmp_path: Path, record: dict[str, Any]) -> None:
    first = record["claims"][0]
    other = first | {"text": "a | b", "published": 5.0, "ours": 4.12345, "holds": False, "note": "Why."}
    claims = [other, first | {"holds": None, "note": "Why."}]
    text, pictures = papers(results(tmp_path, record | {"claims": claims}))
    assert "| a \\| b | 5 | 4.123 | **does not hold** |" in text and text.count("Why.") == 1
    assert f"| {first['ours']} | - |" in text and record["command"] in text
    assert list(pictures) == ["gelberg2024-fig2-paper.png"] and "(img/gelberg2024-fig2-paper.png)" in text


def test_cost_stands_beside_the_command(tmp_path: Path, record: dict[str, Any]) -> None:
    cost = {"seconds": 90.0, "GiB": 2.25}
    whole, part = ({"scale": scale, "whole": scale == "paper"} for scale in ("paper", "short"))
    text, _ = papers(results(tmp_path, record | cost | whole, record | cost | part))
    version = record["versions"]["torch"]
    assert f"torch {version}, 1.5 minutes, 2.2 GiB)." in text and f"torch {version}, 2.2 GiB)." in text


def test_records_of_before_have_no_cost(tmp_path: Path, record: dict[str, Any]) -> None:
    for name in ("GiB", "whole"):
        record.pop(name, None)
    assert f"torch {record['versions']['torch']})." in papers(results(tmp_path, record))[0]


def test_the_larger_scale_comes_first(tmp_path: Path, record: dict[str, Any]) -> None:
    text, pictures = papers(
        results(tmp_path, record | {"scale": "short", "title": "small"}, record | {"title": "large"})
    )
    assert text.index("fig2: large") < text.index("fig2: small") and len(pictures) == 2


def test_a_record_without_its_figures_is_named(tmp_path: Path, record: dict[str, Any]) -> None:
    del record["data"]
    with pytest.raises(CosetError, match=r"0\.json lacks a figure \(data\)"):
        papers(results(tmp_path, record))


def test_without_records(tmp_path: Path) -> None:
    text, pictures = papers(tmp_path)
    assert text.startswith("# Figures of papers, measured") and not pictures
