"""The kernel is compiled by one command, in one step, and its absence is no failure."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coset.assignment import build, lap

ROOT = Path(build.__file__).resolve().parents[3]
compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="no compiler")


@compiler
def test_command(tmp_path: Path) -> None:
    shutil.copytree(build.HERE, tmp_path / "room", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    before = (tmp_path / "room" / "build.py").stat().st_mtime
    done = subprocess.run(
        [sys.executable, str(tmp_path / "room" / "build.py")], capture_output=True, text=True, check=True
    )
    library = Path(done.stdout.strip())
    assert library == tmp_path / "room" / build.LIBRARY and library.stat().st_mtime >= before
    assert ctypes.CDLL(str(library)).coset_supports(lap.VARIANTS["baseline"]) == 1
    assert [path.name for path in library.parent.glob("*.so*")] == [build.LIBRARY], "something is left over"
    if shutil.which("nm"):
        symbols = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
        # A merged template compiled for AVX-512 would crash other processors.
        weak = [line.split()[-1] for line in symbols.splitlines() if line.split()[-2] in "WV" and "thread" not in line]
        assert not weak, weak


def test_the_table_is_the_struct() -> None:
    assert lap.PROBLEM.itemsize == 80
    header = (build.SOURCES / "problem.h").read_text()
    fields = [
        line.split(";")[0].split()[-1].lstrip("*")
        for line in header.split("struct Problem {")[1].splitlines()
        if ";" in line
    ]
    assert [field for field in fields if field != "}"] == list(lap.PROBLEM.names or ())


def test_a_failing_compiler_leaves_the_old_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / build.LIBRARY).write_text("old")
    for broken in ("false", "no-such-compiler"):
        monkeypatch.setenv("CXX", broken)
        with pytest.raises(build.BuildError, match=broken):
            build.build(tmp_path)
        assert build.main() == 1
    assert [path.name for path in tmp_path.iterdir()] == [build.LIBRARY]
    assert (tmp_path / build.LIBRARY).read_text() == "old"


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.build()


@pytest.mark.parametrize("works", [pytest.param(True, marks=[compiler, pytest.mark.slow]), False])
def test_setup_builds_and_never_fails(works: bool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    environment = os.environ | ({} if works else {"CXX": "false"})
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "lib")]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    room = tmp_path / "lib" / "coset" / "assignment"
    assert (room / build.LIBRARY).exists() == works and (room / "kernel" / "solve.cpp").exists()
    assert works or "scipy" in done.stderr
