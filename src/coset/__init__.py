"""Work with neural networks modulo their symmetries.

Names are loaded when first used, so that importing coset, and the command line's help, does not load torch. They stand
in `__init__.pyi`, which type checkers read too. No library is imported above: `python -m coset` runs this before it can
take the current folder off the path, where a file may have the name of a library's module.
"""

from coset._version import __version__ as __version__
from coset.core.surface import surface


def __getattr__(name: str) -> object:
    import importlib

    if name == "__all__":
        return sorted(surface())
    homes = {} if name.startswith("_") else surface()  # Python itself asks for such names, often
    if name not in homes:
        raise AttributeError(f"module 'coset' has no attribute {name!r}")
    module, own = homes[name]
    value = importlib.import_module(module) if own is None else getattr(importlib.import_module(module), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(surface())
