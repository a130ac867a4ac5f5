"""The import graph of `src/coset` by room: files, lines, edges, and whether any goes against the plan.

    python tools/import_graph.py [SOURCE] [--json]

An edge counts however it is written: at the head of a file, inside a function, or for a type checker only. A room
imports only rooms that stand before it in `ROOMS`.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = (
    "core",
    "data",
    "zoo",
    "symmetries",
    "plot",
    "assignment",
    "solutions",
    "alignment",
    "training",
    "inference",
    "paths",
    "weightspace",
    "populations",
    "flow",
    "cli",
)
"""In the order in which they may import each other."""
CORE_ALONE = ("data", "zoo")  # which import no room but core
SURFACE = "coset"  # `coset/__init__.py` and its neighbours, which may import every room and be imported by cli alone


@dataclass(frozen=True)
class Import:
    """One import of a module of the package by another. kind: eager, lazy or typing."""

    source: str
    target: str
    kind: str
    line: int


def modules(root: Path) -> dict[str, Path]:
    """All modules below the folder `root` of the package, by dotted name."""
    names = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def imports(root: Path) -> list[Import]:
    """All imports between modules of the package at `root`."""
    files = modules(root)
    return [edge for name, file in files.items() for edge in _of_file(name, file, files, root.name)]


def room(module: str) -> str:
    """The room of a module: the folder below the package, or `SURFACE`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and not parts[1].startswith("_") else SURFACE


def violations(edges: list[Import]) -> list[str]:
    """Imports against the order of `ROOMS`, in words."""
    wrong = []
    for edge in edges:
        source, target = room(edge.source), room(edge.target)
        if source in (target, SURFACE):
            continue
        if target == SURFACE:
            allowed = source == "cli" or edge.target in ("coset._version",)
        elif source in CORE_ALONE:
            allowed = target == "core"
        else:
            allowed = source in ROOMS and target in ROOMS and ROOMS.index(target) < ROOMS.index(source)
        if not allowed:
            wrong.append(f"{edge.source} imports {edge.target} ({edge.kind}, line {edge.line})")
    return wrong


def cycles(edges: list[Import]) -> list[list[str]]:
    """Sets of modules that import each other in a ring, by eager imports alone."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        if edge.kind == "eager" and edge.source != edge.target:
            graph.setdefault(edge.source, set()).add(edge.target)
            graph.setdefault(edge.target, set())
    return [sorted(part) for part in _components(graph) if len(part) > 1]


def _of_file(name: str, file: Path, files: dict[str, Path], package: str) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for body in block.body
        for node in ast.walk(body)
    }
    at_head = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            targets = [_module(f"{node.module}.{alias.name}", files) for alias in node.names]
        else:
            continue
        kind = "typing" if id(node) in typing_only else "eager" if id(node) in at_head else "lazy"
        for target in targets:
            target = _module(target, files)
            if target.split(".")[0] == package and target != name:
                yield Import(name, target, kind, node.lineno)


def _module(name: str, files: dict[str, Path]) -> str:
    """The module that a dotted name lies in."""
    while name not in files and "." in name:
        name = name.rpartition(".")[0]
    return name


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    parts: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part: set[str] = set()
            while node not in part:
                part.add(stack.pop())
            parts.append(part)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, default=Path("src/coset"), help="the folder of the package")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    files_of, edges = modules(options.source), imports(options.source)
    files = Counter(room(name) for name in files_of)
    lines = Counter(dict.fromkeys(files, 0))
    for name, file in files_of.items():
        lines[room(name)] += len(file.read_text(encoding="utf-8").splitlines())
    between = Counter((room(e.source), room(e.target)) for e in edges if room(e.source) != room(e.target))
    wrong, rings = violations(edges), cycles(edges)
    if options.json:
        record = {
            "rooms": {r: {"files": files[r], "lines": lines[r]} for r in files},
            "edges": {f"{a} -> {b}": n for (a, b), n in sorted(between.items())},
            "violations": wrong,
            "cycles": rings,
        }
        print(json.dumps(record, indent=2))
        return
    order = [*(r for r in ROOMS if r in files), *(r for r in sorted(files) if r not in ROOMS)]
    print(f"{'room':<14}{'files':>6}{'lines':>7}  imports")
    for r in order:
        others = ", ".join(f"{b} {n}" for (a, b), n in sorted(between.items()) if a == r)
        print(f"{r:<14}{files[r]:>6}{lines[r]:>7}  {others}")
    print(f"{'in all':<14}{sum(files.values()):>6}{sum(lines.values()):>7}")
    print(f"\n{len(wrong)} imports against the order, {len(rings)} cycles")
    for line in [*wrong, *(" <-> ".join(ring) for ring in rings)]:
        print(f"  {line}")


if __name__ == "__main__":
    main()
