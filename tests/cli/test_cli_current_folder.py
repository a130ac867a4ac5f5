"""Files of the current folder are imported only for `module:factory`, and never in place of a library's module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from bench import process

Run = Callable[..., Result]
TRAP = "from pathlib import Path\nPath('ran').touch()\nraise SystemExit('a file of the current folder was imported')\n"
# Modules that the library, or what it uses, imports: early, with torch, and only once a model is traced.
SHADOWS = ("__future__", "typing", "pathlib", "json", "inspect", "statistics", "typer", "torch", "numpy", "sympy")
SCRIPT = "import sys; from coset.cli import main; sys.argv[0] = 'coset'; main()"
STARTS = {"script": ("-P", "-c", SCRIPT), "module": ("-m", "coset")}


def shadow(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(TRAP)


def start(kind: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as its script or `python -m` starts it."""
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, *STARTS[kind], *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("kind", STARTS)
def test_no_file_of_the_current_folder_runs_for_a_model_of_the_zoo(folder: Path, kind: str) -> None:
    shadow(folder, *SHADOWS)
    done = start(kind, folder, "inspect", "mlp:4-3-2")
    assert done.returncode == 0 and "Groups" in done.stdout, done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", STARTS)
def test_own_models_lie_in_the_current_folder_behind_all_libraries(folder: Path, kind: str) -> None:
    shadow(folder, *SHADOWS)
    done = start(kind, folder, "inspect", "cli_nets:net", "--input", "2x4")
    assert done.returncode == 0 and "Groups" in done.stdout, done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("spec", ["mlp:4-3-2", "no-such", "mlp:4-3,colour=red", "../x:y"])
def test_the_path_is_left_alone(run: Run, folder: Path, spec: str) -> None:
    before = list(sys.path)
    run("inspect", spec)
    assert sys.path == before


def test_the_path_ends_with_the_folder_of_own_models(run: Run, folder: Path) -> None:
    before = list(sys.path)
    for _ in range(2):
        assert run("inspect", "cli_nets:net", "--input", "2x4").exit_code == 0
    assert sys.path == [*before, str(folder)]


def test_processes_of_benches(folder: Path) -> None:
    shadow(folder, *SHADOWS)
    result, _ = process.call("builtins:dict", {"a": 1}, 60)
    assert result == {"a": 1} and not (folder / "ran").exists()
