"""`make docs` writes all pages and pictures, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs_coverage import LLAMA, write
from test_docs_merging import PAIR

from tools import docs


def test_main_writes_the_pages_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages, results, records = (tmp_path / name for name in ("docs", "results", "records"))
    for folder in (pages, results, records):
        folder.mkdir()
    write(results, "llama8b.json", LLAMA)
    write(results, "merging-mnist.json", PAIR)
    assert docs.main([str(pages), str(results), str(records)]) == 0
    written = {path: path.read_bytes() for path in pages.rglob("*.*")}
    assert {path.name for path in written} == {
        "coverage.md",
        "merging.md",
        "papers.md",
        "reference.md",
        "barrier-mnist.png",
    }
    assert written[pages / "coverage.md"].startswith(b"# Coverage")
    assert b"| `coset.align` | The element that brings b" in written[pages / "reference.md"]
    for name in ("llama8b.json", "merging-ten.json"):
        write(results, name, {"seconds": 1})
        assert docs.main([str(pages), str(results), str(records)]) == 2
        assert f"{name} lacks a figure" in capsys.readouterr().err
        write(results, "llama8b.json", LLAMA)
    assert {path: path.read_bytes() for path in pages.rglob("*.*")} == written
