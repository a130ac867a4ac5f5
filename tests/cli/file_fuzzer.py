"""Reads damaged files by the library and by commands, in a process that may not do much, and says what went wrong.

`python tests/cli/file_fuzzer.py 5000` prints the figures by kind, and each mutant that was not read as it should be.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from file_kinds import KINDS, Kind, copy, make_all
from fuzz_files import damage
from typer.testing import CliRunner

from coset.cli import app
from coset.core.errors import CosetError

SECONDS = 30  # that a mutant may take
MEMORY = 2 * 2**30  # bytes that all of them may take beside what is there before
COMMANDS = 3  # every how many-th mutant is read by a command
LONGEST = 2000  # characters of a message
# What no reading does: any of these is code of somebody else.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.", "socket.", "pty.")
MARKERS = ("ran",)


class SlowError(BaseException):
    """Not an Exception, so that nobody takes it for a fault of a file."""


@dataclass
class Figures:
    """Of one kind: how many mutants were read, refused, read by a command; and what went wrong, with their numbers."""

    read: int = 0
    refused: int = 0
    commands: int = 0
    mib: int = 0
    seconds: float = 0.0
    wrong: list[tuple[int, str]] = field(default_factory=list)


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise SlowError(f"it took more than {limit} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _sentence(text: str) -> str | None:
    """What is wrong with a message."""
    if "\n" in text or len(text) > LONGEST:
        return f"no sentence ({len(text)} characters): {text[:200]!r}"
    return "it has control characters" if any(ord(c) < 32 or ord(c) == 127 for c in text) else None


def _by_library(read: Callable[[Path], object], path: Path, figures: Figures) -> str | None:
    try:
        read(path)
    except CosetError as error:
        figures.refused += 1
        return None if len(str(error)) <= 10 * LONGEST else f"{len(str(error))} characters"
    figures.read += 1
    return None


def _by_command(kind: Kind, path: Path, figures: Figures) -> str | None:
    figures.commands += 1
    before = _listing(path.parent)
    result = CliRunner().invoke(app, [str(word).format(path.name) for word in kind.words], prog_name="coset")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 0:
        figures.read += 1
        return None
    figures.refused += 1
    if result.exit_code != 2:
        return f"exit code {result.exit_code}: {result.stderr!r}"
    new = _listing(path.parent) - before
    if new:
        return f"refused, and wrote {sorted(new)}"
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return _sentence(errors[0]) if len(errors) == 1 else f"not one sentence: {result.stderr!r}"


def mutant(kind: Kind, folder: Path, number: int, rng: random.Random, figures: Figures) -> str | None:
    """What is wrong with how one damaged file is read, if anything is."""
    path = folder / kind.name
    damage(path, rng)
    os.chdir(folder)
    before, done = _listing(folder), False
    try:
        with seconds(SECONDS):
            by_command = kind.read is None or number % COMMANDS == 0
            wrong = _by_command(kind, path, figures) if by_command else _by_library(kind.read, path, figures)
            done = True
    except BaseException as error:
        frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-4:]]
        wrong = f"{type(error).__name__} at {' '.join(frames)}: {str(error)[:200]!r}"
    if any((folder / marker).exists() for marker in MARKERS):
        return "code was executed"
    if not done and (new := _listing(folder) - before):
        return f"{wrong}; wrote {sorted(new)}"
    return wrong


def _watch(events: list[str]) -> None:
    def hear(event: str, _arguments: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN) and event not in ("socket.__new__", "socket.bind", "socket.gethostname"):
            events.append(event)

    sys.addaudithook(hear)


def _child(sources: Path, names: Sequence[str], numbers: Sequence[int], seed: int, target: Path) -> None:
    events: list[str] = []
    _watch(events)
    work = target.with_suffix("")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    found: dict[str, Figures] = {}
    for name in names:
        figures = found[name] = Figures()
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in numbers:
            copy(sources / name, work)
            events.clear()
            wrong = mutant(KINDS[name], work, number, random.Random(f"{name} {seed} {number}"), figures)
            if events:
                wrong = f"it called {', '.join(sorted(set(events)))}"
            if wrong is not None:
                figures.wrong.append((number, wrong))
            os.chdir(sources)
            shutil.rmtree(work)
        figures.mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        figures.seconds = time.perf_counter() - begin
    target.write_text(json.dumps({name: vars(figures) for name, figures in found.items()}))


def fuzz(sources: Path, names: Sequence[str], numbers: Sequence[int], seed: int = 0) -> dict[str, Figures]:
    """Read these mutants of each kind in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        arguments = (sources, names, numbers, seed, target)
        process = multiprocessing.get_context("fork").Process(target=_child, args=arguments)
        process.start()
        process.join()
        if not target.exists():
            return {name: Figures(wrong=[(-1, f"the process died with code {process.exitcode}")]) for name in names}
        return {name: Figures(**one) for name, one in json.loads(target.read_text()).items()}


def main(count: int, seed: int, names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "files"
        make_all(sources, names)
        total = Counter[str]()
        for name in names:
            figures = fuzz(sources, [name], range(-(-count // len(names))), seed)[name]
            row = {"read": figures.read, "refused": figures.refused, "commands": figures.commands}
            row |= {"wrong": len(figures.wrong)}
            total.update(row)
            numbers = ", ".join(f"{value} {key}" for key, value in row.items())
            say(f"{name}: {numbers}, {figures.mib} MiB more, {figures.seconds:.0f} s")
            for number, wrong in figures.wrong[:40]:
                say(f"    {number}: {wrong}")
        say(", ".join(f"{value} {key}" for key, value in total.items()))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3:] or list(KINDS))
