"""Compile the kernel: `python -m coset.assignment.build`.

Only the standard library is used, since `setup.py` loads this file when nothing else is installed.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "kernel"
LIBRARY = "libcoset_lap.so"

X86 = platform.machine().lower() in ("x86_64", "amd64")
# With finite sentinels, comparisons become the processor's own minimum. No flag may change a rounding, so that all
# variants give the same answer; none is given to the linker, where -ffast-math would change the caller's arithmetic.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-Wall", "-Wno-psabi", "-pthread"]
FLOATS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-ffinite-math-only", "-fno-signed-zeros"]
VARIANTS: dict[str, list[str]] = {"baseline": []} | (
    {
        "avx2": ["-mavx2", "-mbmi", "-mtune=haswell"],
        "avx512": ["-mavx512f", "-mavx512dq", "-mbmi", "-mprefer-vector-width=512", "-mtune=skylake-avx512"],
    }
    if X86
    else {}
)


class BuildError(Exception):
    """There is no compiler, or it refused the sources."""


def build(folder: Path = HERE) -> Path:
    """Compile the library into `folder`, in one step: it is complete or absent. Returns its path."""
    compiler = _compiler()
    target = folder / LIBRARY
    with tempfile.TemporaryDirectory() as scratch:
        objects = {Path(scratch) / f"{name}.o": _object(name, flags) for name, flags in VARIANTS.items()}
        objects[Path(scratch) / "lap.o"] = [*(["-DCOSET_X86"] if X86 else []), str(SOURCES / "lap.cpp")]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(_run, ([*compiler, *COMMON, *rest, "-c", "-o", str(to)] for to, rest in objects.items())))
        library = Path(scratch) / LIBRARY
        _run([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{LIBRARY}.{secrets.token_hex(8)}"  # a rename is atomic only within one file system
        try:
            shutil.copy(library, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    return target


def _object(name: str, flags: list[str]) -> list[str]:
    return [*FLOATS, *flags, f"-DCOSET_VARIANT=coset_solve_{name}", str(SOURCES / "solve.cpp")]


def _compiler() -> list[str]:
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler: install g++, or name one in CXX")


def _run(command: list[str]) -> None:
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    if process.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{process.stderr.strip()}")


def main() -> int:
    """Compile into the package's own folder, and say where the library is."""
    try:
        sys.stdout.write(f"{build()}\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
