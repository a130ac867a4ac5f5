"""Benchmarks: `python -m bench` lists them, `python -m bench NAME` runs one.

A benchmark is a file here, or a package, with one of two functions. `run(seed, say)` returns a `Measurement`, which is
printed as a table or as JSON. `main` has options of its own, which typer reads from its parameters, and prints and
writes by itself. The first paragraph of the docstring is what is listed. Other tools are optional imports.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

from bench.measurement import Measurement
from coset.core.errors import CosetError

__all__ = ["Measurement", "benchmarks", "run"]


def benchmarks() -> dict[str, str]:
    """What each measures, by name; files are read but not imported, as most import torch and some other tools."""
    paths = (path for path in Path(__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir())
    texts = {path.stem: _description(path) for path in sorted(paths)}
    return {name: text for name, text in texts.items() if text is not None}


def run(name: str, seed: int = 0, say: Callable[[str], None] = lambda text: None) -> Measurement:
    """Run a benchmark that makes a table; `say` hears what is being measured."""
    if name not in benchmarks():
        raise unknown(name)
    measurement: Measurement = importlib.import_module(f"bench.{name}").run(seed, say)
    return measurement


def unknown(name: str) -> CosetError:
    """What to say about a name that is none."""
    return CosetError(f"There is no bench {name!r}, only {', '.join(benchmarks())}.")


def _description(path: Path) -> str | None:
    """The first paragraph of a benchmark's docstring; None of a file that is no benchmark."""
    file = path / "__init__.py" if path.is_dir() else path
    if path.stem.startswith("_") or not file.exists():
        return None
    module = ast.parse(file.read_text(encoding="utf-8"))
    if not any(isinstance(node, ast.FunctionDef) and node.name in ("run", "main") for node in module.body):
        return None
    return " ".join((ast.get_docstring(module) or "").split("\n\n")[0].split())
