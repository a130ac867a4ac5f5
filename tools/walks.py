"""Five calls followed through the house: the files whose code runs, and how often the call goes to another room.

    python tools/walks.py [--source src/coset] [--json] [--files]

A file counts if one of its functions runs during the call; what runs when a module is imported does not. A change of
room is a pair of files of two rooms of which one calls the other. Rooms are the folders of the package.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

NET = """from torch import nn


def make():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
"""


@dataclass
class Walk:
    """files: of the package, relative to it. edges: pairs of files of which one called the other."""

    files: set[str] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)

    @property
    def rooms(self) -> set[str]:
        return {room(file) for file in self.files}

    @property
    def changes(self) -> int:
        """How many pairs of files are of two rooms."""
        return sum(room(a) != room(b) for a, b in self.edges)


def room(file: str) -> str:
    """The folder of a file of the package; what lies in none has a room of its own."""
    return file.split("/")[0]


def follow(call: Callable[[], Any], package: Path) -> Walk:
    """The walk of `call()` through the files of `package`."""
    walk, prefix = Walk(), f"{package.resolve()}/"

    def of(frame: FrameType | None) -> str | None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(prefix):
                return None if frame.f_code.co_name == "<module>" else name.removeprefix(prefix)
            frame = frame.f_back
        return None

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(prefix) or frame.f_code.co_name == "<module>":
            return
        if frame.f_code.co_name.startswith("<") and of(frame.f_back) == name.removeprefix(prefix):
            return  # a comprehension
        here, caller = name.removeprefix(prefix), of(frame.f_back)
        walk.files.add(here)
        if caller is not None and caller != here:
            walk.edges.add((caller, here))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def walks(package: Path) -> dict[str, Walk]:
    """The five calls."""
    sys.path.insert(0, str(package.parent))
    import torch

    import coset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, targets = torch.randn(256, 8), torch.randint(3, (256,))
    scope: dict[str, Any] = {}
    exec(NET, scope)
    net, other = (scope["make"]() for _ in range(2))
    sym = coset.symmetry(net, (inputs[:2],))
    population = coset.collect(net, (inputs, targets), 16, coset.Collect(epochs=1))
    ends = [dict(model.state_dict()) for model in (net, other)]

    def flow() -> None:
        coset.Flow(sym).fit(population, coset.Matching(epochs=1))

    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / name) for name in ("a.safetensors", "b.safetensors")]
        from safetensors.torch import save_file

        for name, state in zip(names, ends, strict=True):
            save_file(state, name)
        (Path(folder) / "walked_net.py").write_text(NET)

        def command() -> None:
            from coset.cli import main

            words = [
                "--model",
                "walked_net:make",
                "--input",
                "2x8",
                "-o",
                f"{folder}/aligned.safetensors",
                "--overwrite",
            ]
            argv, sys.argv = sys.argv, ["coset", "align", *names, *words]
            try:
                with contextlib.chdir(folder):
                    main()
            except SystemExit as end:
                assert end.code in (None, 0), f"coset align ended with {end.code}"
            finally:
                sys.argv = argv

        calls: dict[str, Callable[[], Any]] = {
            "coset.symmetry(model, x)": lambda: coset.symmetry(net, (inputs[:2],)),
            "coset.align(a, b, sym)": lambda: coset.align(coset.Dirac(ends[0]), coset.Dirac(ends[1]), sym),
            "coset.fit(model, data, VI())": lambda: coset.fit(net, (inputs, targets), coset.VI(epochs=2)),
            "Flow.fit(population)": flow,
            "coset align": command,
        }
        for call in calls.values():
            call()  # what is imported or cached the first time is no part of the walk
        return {name: follow(call, package) for name, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("src/coset"), help="the folder of the package")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    options = parser.parse_args()
    measured = walks(options.source.resolve())
    if options.json:
        rows = {n: {"files": sorted(w.files), "rooms": len(w.rooms), "changes": w.changes} for n, w in measured.items()}
        print(json.dumps(rows, indent=2))
        return
    print(f"{'call':<30}{'files':>6}{'rooms':>6}{'changes of room':>17}")
    for name, walk in measured.items():
        print(f"{name:<30}{len(walk.files):>6}{len(walk.rooms):>6}{walk.changes:>17}")
        if options.files:
            print("".join(f"    {file}\n" for file in sorted(walk.files)), end="")


if __name__ == "__main__":
    main()
