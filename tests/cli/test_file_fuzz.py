"""Damaged files of every kind are read, or refused in one sentence: no traceback, no code, no files, little memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from file_fuzzer import fuzz
from file_kinds import KINDS, make_all

FEW, MANY = 4, 200
MIB = 512  # that reading damaged files may take


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds") / "files"
    make_all(folder)
    return folder


def check(sources: Path, names: list[str], numbers: range) -> None:
    figures = fuzz(sources, names, numbers)
    assert {name: one.wrong for name, one in figures.items() if one.wrong} == {}
    assert max(one.mib for one in figures.values()) < MIB
    # Most damage is seen, and some is none: bytes of numbers that are other numbers.
    assert sum(one.refused for one in figures.values()) > sum(one.read for one in figures.values()) > 0


def test_damaged_files_of_all_kinds(sources: Path) -> None:
    check(sources, list(KINDS), range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files(sources: Path, name: str) -> None:
    check(sources, [name], range(FEW, FEW + MANY))
