"""The command as a whole: help, version, signals, and how it starts."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

import coset

Run = Callable[..., Result]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"coset {coset.__version__}\n"


def test_unknown_command_and_option(run: Run) -> None:
    assert run("explain").exit_code == 2
    assert run("inspect", "mlp:4-3-2", "--colour").exit_code == 2


def test_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coset.symmetries.infer.symmetry", interrupted)
    result = run("inspect", "mlp:4-3-2")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_own_bugs_are_not_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("coset.symmetries.infer.symmetry", broken)
    assert isinstance(run("inspect", "mlp:4-3-2").exception, ZeroDivisionError)


def test_python_m_and_console_script_agree() -> None:
    by_module = subprocess.run([sys.executable, "-m", "coset", "inspect", "no-such"], capture_output=True, text=True)
    assert by_module.returncode == 2
    assert by_module.stdout == ""
    assert by_module.stderr.splitlines()[-1].startswith("error: Unknown model 'no-such'")


def test_the_command_line_itself_does_not_import_torch() -> None:
    # Of the package, __init__ alone decides whether torch comes along; here it is replaced by an empty one.
    code = """
import sys, types, pathlib, importlib.util
root = pathlib.Path(importlib.util.find_spec("coset").origin).parent
package = types.ModuleType("coset")
package.__path__ = [str(root)]
sys.modules["coset"] = package
import coset.cli
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
