"""Commands that are killed at random moments, meet a full disk, or share a folder; and whether work was lost or mixed.

`python tests/cli/command_stops.py 210 42 42` prints the figures of so many kills, full disks and pairs over all
commands. As root, a full disk is a file system in memory without room; else a limit of how long files may be.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import coset
from coset import zoo
from coset.cli.app import main
from coset.core import state as states
from coset.core.resume import DIGEST, content_digest

NET = "mlp:30-6-2"
DATA, KEPT = ("--data", "breast-cancer"), ("--work", "run")
ON_DATA = ("--model", NET, *DATA)
FIT = ("fit", *ON_DATA, "--out", "run", "--checkpoint-seconds", "0", "--method")
NETWORK = ("--width", "8", "--depth", "1", "--heads", "2", "--batch-size", "4", "--epochs", "12")
CURVE = ("curve", "a.safetensors", "b.safetensors", *ON_DATA, "-o", "run", "--checkpoint-seconds", "0", "--points", "5")
PAIR = ("a.safetensors", "b.safetensors", "--model", NET)
SECONDS = 120  # that a command may take
KILLS = 3  # of one piece of work, at most
PICTURE = re.compile(r'src="data:[^"]*"')  # of a page, which says when it was drawn
TIMES = ("seconds", "GiB", "whole")  # what work took, and whether all of that is known: they differ from run to run


@dataclass(frozen=True)
class Work:
    """A command that works in `run` or writes `out`; `words` are all but its seed."""

    words: tuple[str, ...]

    def command(self, seed: int, overwrite: bool) -> list[str]:
        """overwrite: what an earlier call has written, where the command has an output."""
        return [*self.words, "--seed", str(seed), *(["--overwrite"] if overwrite and self.has_output else [])]

    @property
    def has_output(self) -> bool:
        return any(word.startswith("out") for word in self.words)


WORKS = {
    "fit map": Work((*FIT, "map", "--replicas", "2", "--set", "epochs=20")),
    "fit vi": Work((*FIT, "vi", "--set", "epochs=30")),
    "fit hmc": Work((*FIT, "hmc", "--set", "draws=10", "--set", "warm_up=10", "--set", "chains=2")),
    "fit laplace": Work((*FIT, "laplace", "--set", "base.epochs=30")),
    "fit deep-ensemble": Work((*FIT, "deep-ensemble", "--set", "members=3", "--set", "base.epochs=15")),
    "curve": Work((*CURVE, "--epochs", "15")),
    "curve --pam": Work((*CURVE, "--epochs", "6", "--pam", "--set", "pam.iterations=2")),
    "flow collect": Work(
        ("flow", "collect", *ON_DATA, "--runs", "12", "--chunk", "3", "--epochs", "3", *KEPT, "-o", "out.safetensors")
    ),
    "flow fit": Work(
        ("flow", "fit", "nets.safetensors", *NETWORK, *KEPT, "--checkpoint-seconds", "0", "-o", "out.safetensors")
    ),
    "flow sample": Work(
        ("flow", "sample", "flow.safetensors", "-n", "150", "--steps", "8", *KEPT, "-o", "out.safetensors")
    ),
    "flow evaluate": Work(
        ("flow", "evaluate", "nets.safetensors", *DATA, "--against", "more.safetensors", "--pairs", "6", *KEPT)
    ),
    "barrier": Work(("barrier", *PAIR, *DATA, "--points", "9", "--html", "out.html")),
    "merge": Work(("merge", *PAIR, *DATA, "-o", "out.safetensors")),
    "align": Work(("align", *PAIR, "--restarts", "5", "-o", "out.safetensors")),
    "reproduce": Work(("reproduce", "gelberg2024/theorem31", "--out", "run")),
}


def make_inputs(folder: Path, names: Iterable[str]) -> None:
    """The files that these commands read."""
    folder.mkdir()
    like = states.of(zoo.build(NET))
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        state = {key: 0.3 * torch.randn(x.shape, generator=generator) for key, x in like.items()}
        coset.save_state(state, folder / f"{name}.safetensors")
    for name in ("nets", "more"):
        both = [{key: torch.randn(12, *x.shape, generator=generator) for key, x in like.items()} for _ in range(2)]
        population = coset.Population(*both, {}, {"model": NET, "arguments": None, "inputs": []})
        population.save(folder / f"{name}.safetensors")
    if not any("flow.safetensors" in WORKS[name].words for name in names):
        return
    running = Running(folder, ["flow", "fit", "nets.safetensors", *NETWORK, "-o", "flow.safetensors"])
    assert running.finish() == 0, running.complaint


class Running:
    """A command in a process of its own, which has imported everything; what it prints goes through a pipe.

    largest: bytes of the longest file that it may write.
    """

    def __init__(self, folder: Path, words: Sequence[str], largest: int | None = None) -> None:
        reader, writer = os.pipe()
        arguments = (folder, words, largest, writer)
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        self.process.start()
        os.close(writer)
        self._pipe, self._text = os.fdopen(reader), ""

    def finish(self) -> int:
        """Wait until it ends; how it did."""
        self.process.join(SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        with self._pipe:
            self._text = self._pipe.read()
        assert self.process.exitcode is not None
        return self.process.exitcode

    @property
    def complaint(self) -> str:
        """The last line that it printed; all of it if there is a traceback."""
        return self._text if "Traceback" in self._text else self._text.strip().rpartition("\n")[2]


def _run(folder: Path, words: Sequence[str], largest: int | None, writer: int) -> None:
    os.chdir(folder)
    sys.stdout = sys.stderr = os.fdopen(writer, "w", buffering=1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["coset", *words]
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    main()


def content(folder: Path) -> dict[str, Any]:
    """What commands wrote, without what differs from run to run, and without what a killed one left half-written."""
    files = [*(folder / "run").rglob("*"), *folder.glob("out*")]
    kept = [file for file in files if file.is_file() and not file.name.startswith(".")]
    return {str(file.relative_to(folder)): _content(file) for file in kept}


def _content(file: Path) -> Any:
    if file.suffix == ".json":
        return _timeless(json.loads(file.read_text()))
    if file.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in file.read_text().splitlines()]
    if file.suffix == ".pt":
        checkpoint = torch.load(file, weights_only=True)
        return content_digest({name: x for name, x in checkpoint.items() if name not in (*TIMES, DIGEST)})
    if file.suffix == ".html":
        return PICTURE.sub("", file.read_text())
    return file.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if name not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


@dataclass
class Figures:
    """How often something was done to a command, how often it mattered, and what was wrong then."""

    count: int = 0
    hits: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """One command with what it leads to undisturbed, by seed, and how long that takes.

    mounts: whether a full disk may be a file system of its own.
    """

    name: str
    inputs: Path
    mounts: bool
    results: dict[int, dict[str, Any]]
    seconds: float

    @classmethod
    def of(cls, name: str, inputs: Path, root: Path, mounts: bool) -> Trial:
        results, seconds = {}, 0.0
        for seed in (0, 1):
            folder = root / f"whole-{seed}"
            shutil.copytree(inputs, folder)
            begin = time.monotonic()
            running = Running(folder, WORKS[name].command(seed, False))
            assert running.finish() == 0, running.complaint
            seconds = time.monotonic() - begin
            results[seed] = content(folder)
            shutil.rmtree(folder)
        return cls(name, inputs, mounts, results, seconds)

    def check_whole(self, folder: Path, *seeds: int) -> str | None:
        """What is wrong with what lies there; of several seeds all must be there."""
        there = content(folder)
        right = {name: value for seed in seeds for name, value in self.results[seed].items()}
        if any(right[name] != value for seed in seeds for name, value in self.results[seed].items()):
            return f"the seeds {seeds} ended well in one place"
        differing = sorted(name for name in {*there, *right} if there.get(name) != right.get(name))
        return f"other than undisturbed: {', '.join(differing)}" if differing else None

    def ends_well(self, folder: Path) -> str | None:
        """Call the command again, undisturbed; what is wrong with its result."""
        running = Running(folder, WORKS[self.name].command(0, True))
        code = running.finish()
        return f"called again, it ended with {code}: {running.complaint}" if code else self.check_whole(folder, 0)

    def kill(self, folder: Path, rng: random.Random, figures: Figures) -> str | None:
        """Kill the command at random moments, a few times; then it is to go on."""
        shutil.copytree(self.inputs, folder)
        for _ in range(rng.randint(1, KILLS)):
            number = rng.choice((signal.SIGKILL, signal.SIGTERM))
            running = Running(folder, WORKS[self.name].command(0, True))
            running.process.join(rng.uniform(0, self.seconds))
            figures.count += 1
            if running.process.is_alive():
                os.kill(running.process.pid or 0, number)
            code = running.finish()
            figures.hits += code != 0
            if code not in (0, -number, *([143] if number == signal.SIGTERM else [])):
                return f"{number.name} ended it with {code}: {running.complaint}"
            if code == 143 and not running.complaint.startswith("stopped: "):
                return f"{number.name}: {running.complaint}"
            if code == 0:
                break
        return self.ends_well(folder)

    def fill_disk(self, folder: Path, rng: random.Random, figures: Figures) -> str | None:
        """Run the command on a disk with too little room; with enough it is to go on."""
        room = int(rng.uniform(0, 1.2) * sum(_size(one) for one in self.results[0].values()))
        with small_disk(folder, self.inputs, room, self.mounts) as (largest, enlarge):
            running = Running(folder, WORKS[self.name].command(0, True), largest)
            code = running.finish()
            figures.count += 1
            figures.hits += code != 0
            if code not in (0, 2) or (code == 2 and not running.complaint.startswith("error: ")):
                return f"a disk with room for {room} bytes ended it with {code}: {running.complaint}"
            enlarge()
            return self.ends_well(folder)

    def pair(self, folder: Path, rng: random.Random, figures: Figures) -> str | None:
        """Two at once, of the same seed or of two: what is there is that of one, whole, as it says itself."""
        shutil.copytree(self.inputs, folder)
        seeds = (0, rng.randint(0, 1))
        both = []
        for seed in seeds:
            both.append(Running(folder, WORKS[self.name].command(seed, False)))
            time.sleep(rng.uniform(0, 0.5 * self.seconds))
        codes = [running.finish() for running in both]
        figures.count += 1
        figures.hits += 2 in codes
        for running, code in zip(both, codes, strict=True):
            if code not in (0, 2) or (code == 2 and not running.complaint.startswith("error: ")):
                return f"one of two ended with {code}: {running.complaint}"
        winners = {seed for seed, code in zip(seeds, codes, strict=True) if code == 0}
        return self.check_whole(folder, *winners) if winners else f"neither of two with the seeds {seeds} ended well"


@contextlib.contextmanager
def small_disk(folder: Path, inputs: Path, room: int, mounts: bool) -> Iterator[tuple[int | None, Callable[[], None]]]:
    """The inputs on a file system with room for so many bytes more, and what enlarges it.

    Where none is mounted, the length that no file may exceed.
    """
    page = 4096
    size = room + sum(-(-file.stat().st_size // page) * page for file in inputs.iterdir()) + page
    folder.mkdir()
    is_mounted = mounts and not _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        if is_mounted:
            yield None, lambda: _mount("-o", "remount,size=1g", str(folder)) and None
        else:
            yield room // 2, lambda: None
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


def _mount(*words: str) -> int:
    return subprocess.run(["mount", *words], capture_output=True).returncode


def _size(content: Any) -> int:
    return len(content if isinstance(content, bytes) else json.dumps(content))


def disturb(
    root: Path, names: Sequence[str], counts: tuple[int, int, int], seed: int = 0, mounts: bool = False
) -> dict[str, dict[str, Figures]]:
    """The figures of each command, by what was done to it.

    counts: of kills, full disks and pairs over all commands.
    """
    coset.data.load("breast-cancer")  # imported before processes start
    make_inputs(root / "inputs", names)
    rows = {}
    for name in names:
        rng = random.Random(f"{name} {seed}")
        trial = Trial.of(name, root / "inputs", root, mounts)
        row = rows[name] = {"kills": Figures(), "full disks": Figures(), "pairs": Figures()}
        disturbances = (trial.kill, trial.fill_disk, trial.pair)
        for figures, method, count in zip(row.values(), disturbances, counts, strict=True):
            while figures.count < -(-count // len(names)):
                folder = root / "work"
                wrong = method(folder, rng, figures)
                if wrong is not None:
                    figures.wrong.append(wrong)
                shutil.rmtree(folder)
                if len(figures.wrong) > 3:
                    break
        say(f"{name}, {trial.seconds:.1f} s: {', '.join(_said(kind, figures) for kind, figures in row.items())}")
        for kind, figures in row.items():
            for wrong in figures.wrong:
                say(f"    {kind}: {wrong}")
    return rows


def _said(kind: str, figures: Figures) -> str:
    return f"{figures.count} {kind} ({figures.hits} in time, {len(figures.wrong)} wrong)"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(counts: tuple[int, int, int], seed: int, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = disturb(Path(folder), names, counts, seed, mounts=os.geteuid() == 0)
    total = Counter[str]()
    for row in rows.values():
        for kind, figures in row.items():
            total.update({kind: figures.count, "in time": figures.hits, "wrong": len(figures.wrong)})
    say(", ".join(f"{value} {key}" for key, value in total.items()))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:5]]
    kills, disks, pairs, seed = numbers + [210, 42, 42, 0][len(numbers) :]
    measure((kills, disks, pairs), seed, sys.argv[5:] or list(WORKS))
