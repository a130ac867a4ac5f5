"""Tables on terminals of any width."""

from __future__ import annotations

import re

import pytest

from coset.cli import console


@pytest.mark.parametrize("width", [20, 80, 100, 200])
def test_numbers_and_names_are_never_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ("name", *(f"the number {k}" for k in range(8)))
    rows = [("samples", *["123456.7891"] * 8), ("a" * 60, *["1"] * 8)]
    console.stdout().print(console.table("A table", columns, rows, numbers=columns[1:]))
    text = capsys.readouterr().out
    assert "…" not in text and text.count("123456.7891") == 8 and "samples" in text
    assert "".join(re.findall("^a+", text, re.MULTILINE)) == "a" * 60
