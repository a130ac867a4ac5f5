"""The rules of the house as numbers, and the places that break them.

    python -m tools.house [--json]

Imports against the order of rooms and rings of them (`tools.import_graph`), participles in place of names, one class
name for two things, calls with eight or more positional arguments, imports of files in the documentation, and how
many names `import coset` exports. `tests/test_house.py` lets none of them through.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.import_graph import cycles, imports, violations

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "papers/src", "bench", "tools", "examples")
PARTICIPLES = frozenset(
    [
        "asked",
        "begun",
        "bent",
        "chosen",
        "divided",
        "drawn",
        "found",
        "given",
        "gone",
        "grown",
        "held",
        "joined",
        "kept",
        "known",
        "made",
        "missed",
        "moved",
        "noted",
        "seen",
        "taken",
        "told",
        "wanted",
    ]
)
MOST_POSITIONAL = 7
SURFACE_ROOMS = ("data", "plot", "zoo", "assignment")
"""Rooms whose functions have their place there: `coset.data.load` and not `coset.load_data`."""


def participles(*folders: str) -> list[str]:
    """Places where a variable, argument, attribute, function or class has a participle for a name."""
    return [f"{place}: {name}" for place, name in _bound_names(folders) if name.strip("_").lower() in PARTICIPLES]


def homonyms(folder: str = "src") -> list[str]:
    """Classes and type aliases of modules that have a name in common."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file, tree in _trees([folder]):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(file)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name[0].isupper() and not name.isupper():
                    homes[name].append(file)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(homes.items()) if len(files) > 1]


def long_calls(*folders: str) -> list[str]:
    """Calls with more than `MOST_POSITIONAL` positional arguments."""
    return [
        f"{file}:{node.lineno}: {ast.unparse(node.func)} takes {len(node.args)}"
        for file, tree in _trees(folders)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL
    ]


def deep_imports() -> list[str]:
    """Imports in the documentation and the examples from anything but `coset` and its surface rooms."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "examples").glob("*.py")]
    deep = re.compile(r"^\s*(?:from|import) coset\.(?!_)(\S+)", re.MULTILINE)
    wrong = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        wrong += [
            f"{page.relative_to(ROOT)}: coset.{match.group(1)}"
            for match in deep.finditer(text)
            if match.group(1) not in SURFACE_ROOMS and page.name != "CONTRIBUTING.md"
        ]
    return wrong


def _trees(folders: tuple[str, ...] | list[str]) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))


def _bound_names(folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for file, tree in _trees(folders):
        for node in ast.walk(tree):
            name = None
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name is not None:
                yield f"{file}:{getattr(node, 'lineno', 0)}", name


def rules() -> dict[str, list[str]]:
    """What breaks each rule of the house."""
    edges = imports(ROOT / "src/coset")
    return {
        "imports against the order of rooms": violations(edges),
        "rings of imports": [" <-> ".join(ring) for ring in cycles(edges)],
        "participles for names": participles(*CODE),
        "one class name for two things": homonyms(),
        "calls with eight or more positional arguments": long_calls(*CODE),
        "imports of files in the documentation": deep_imports(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    broken = rules()
    if options.json:
        print(json.dumps(broken, indent=2))
        return
    for rule, places in broken.items():
        print(f"{len(places):>5}  {rule}")
        print("".join(f"         {place}\n" for place in places), end="")
    import coset

    print(f"{len(dir(coset)):>5}  names that `import coset` exports")


if __name__ == "__main__":
    main()
