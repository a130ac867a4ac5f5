"""The public names of coset, which stand in `coset/__init__.pyi`: the one table that import, help and tests read.

The library is imported within, since `coset` itself imports this file: see there.
"""


def surface() -> dict[str, tuple[str, str | None]]:
    """For each public name the module it lives in and its name there, None if it is that module."""
    import ast
    from pathlib import Path

    stub = ast.parse((Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8"))
    homes: dict[str, tuple[str, str | None]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            is_package = node.module in ("coset", "coset.core", "coset.symmetries")  # of rooms, or of modules
            for alias in node.names:
                homes[alias.name] = (f"{node.module}.{alias.name}", None) if is_package else (node.module, alias.name)
    return homes
