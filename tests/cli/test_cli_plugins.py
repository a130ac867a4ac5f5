"""Commands that other distributions bring: installed, or beside the library in a checkout that is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

program = importlib.import_module("coset.cli.app")  # by this name its package has the app itself

PROJECT = """
[project]
name = "more"
[project.entry-points."coset.commands"]
hello = "hello_of_coset:register"
"""
COMMAND = """
def register(app):
    @app.command(name="hello")
    def hello():
        print("hello there")
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of the project, with a distribution beside the library; its sources."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("src", "more/src", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "empty/pyproject.toml").write_text("[project]\nname = 'empty'\n")
    (tmp_path / "more/pyproject.toml").write_text(PROJECT)
    (tmp_path / "more/src/hello_of_coset.py").write_text(COMMAND)
    return tmp_path / "src"


def test_a_checkout_needs_no_install(checkout: Path) -> None:
    (point,) = program.checkout_plugins(checkout)
    group = typer.Typer()
    point.load()(group)
    assert CliRunner().invoke(group).stdout == "hello there\n"
    assert sys.path[-1] == str(checkout.parent / "more/src")


def test_nothing_is_looked_for_where_the_library_is_installed(checkout: Path, tmp_path: Path) -> None:
    assert not list(program.checkout_plugins(tmp_path / "more"))
    (tmp_path / "pyproject.toml").unlink()
    before = list(sys.path)
    assert not list(program.checkout_plugins(checkout)) and sys.path == before


def test_this_checkout_has_reproduce_and_bench() -> None:
    assert {point.name for point in program.checkout_plugins()} == {"reproduce", "bench"}
