"""One small file of every kind that is read, and what reads it: a function of the library, and a command."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import coset
from coset import zoo
from coset.cli import app
from coset.core import json_reader, state as states
from coset.symmetries.serialization import load_element, save_element, symmetry_of_file

NET = "mlp:30-3-2"
MODEL = ("--model", NET)
DATA = ("--data", "breast-cancer")
SMALL = ("--width", 8, "--depth", 1, "--heads", 2, "--epochs", 1, "--batch-size", 4)
FIT = coset.MAP(epochs=2, batch_size=256)


@dataclass(frozen=True)
class Kind:
    """How such files are made and read.

    make: writes one at a path. name: of the file or folder. read: by the library, if it does. words: of a command that
    reads it, in the folder with the file; `out.safetensors` is where it may write.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object] | None
    words: tuple[object, ...]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return zoo.build(NET)


@functools.cache
def symmetry() -> coset.Symmetry:
    return coset.symmetry(model(), zoo.example_input(NET))


def random_state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(x.shape, generator=generator) for name, x in states.of(model()).items()}


def population() -> coset.Population:
    like = states.of(model())
    generator = torch.Generator().manual_seed(0)
    both = [{name: torch.randn(4, *x.shape, generator=generator) for name, x in like.items()} for _ in range(2)]
    about = {"model": NET, "arguments": None, "inputs": []}
    return coset.Population(*both, {"loss": torch.rand(4, generator=generator)}, about)


def _gaussian() -> coset.Gaussian:
    mean = random_state(1)
    return coset.Gaussian(mean, {name: 0.1 + x.sigmoid() for name, x in mean.items()})


def _solutions() -> dict[str, Callable[[], coset.Solution]]:
    bias, weight = "layers.1.bias", "layers.1.weight"
    return {
        "dirac": lambda: coset.Dirac(random_state(1)),
        "gaussian": _gaussian,
        "full_gaussian": lambda: coset.FullGaussian(random_state(1), torch.eye(2), [bias]),
        "kronecker_gaussian": lambda: coset.KroneckerGaussian(random_state(1), {weight: (torch.eye(2), torch.eye(3))}),
        "ensemble": lambda: coset.Ensemble([random_state(1), random_state(2)]),
        "mixture": lambda: coset.Mixture([_gaussian(), random_state(2)], [0.5, 0.5]),
        "symmetrized": lambda: coset.Symmetrized(_gaussian(), symmetry()),
    }


def _shards(folder: Path) -> None:
    folder.mkdir()
    state = random_state(1)
    files = {name: f"model-0000{k % 2 + 1}-of-00002.safetensors" for k, name in enumerate(state)}
    for file in sorted(set(files.values())):
        coset.save_state({name: x for name, x in state.items() if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def _element(path: Path) -> None:
    sym = symmetry()
    save_element(path, sym, sym.random(torch.Generator().manual_seed(0)))


def _flow(path: Path, geometry: Any = "geometric", conditions: tuple[str, ...] = ("loss",)) -> None:
    plan = coset.FlowPlan(geometry, architecture=coset.Architecture(width=8, depth=1, heads=2), conditions=conditions)
    flow = coset.Flow.of(symmetry(), plan)
    flow.fit(population(), coset.Matching(epochs=1, batch_size=4))
    flow.save(path)


def _record(path: Path) -> None:
    """Of a figure of a paper, as it lies in the repository."""
    shutil.copy(Path(__file__).parents[2] / "papers" / "results" / "gelberg2024-fig2-paper.json", path)


class StopError(Exception):
    """Raised in the middle of a run."""


def _fit(out: Path, progress: Any = None) -> object:
    data = coset.data.load("breast-cancer").train
    return coset.fit(model(), data, FIT, seed=0, out=out, progress=progress, checkpoint_seconds=0.0)


def _half_run(out: Path) -> None:
    def stop(event: Any) -> None:
        if event.epoch is not None:
            raise StopError

    try:
        _fit(out, stop)
    except StopError:
        return
    raise AssertionError


def _work(words: tuple[object, ...], lost: str) -> Callable[[Path], None]:
    """What makes the folder of a command, without the files of a pattern, so that there is work left."""

    def make(folder: Path) -> None:
        population().save(folder.with_name("nets.safetensors"))
        coset.save_state(random_state(5), folder.with_name("other.safetensors"))
        _flow(folder.with_name("flow.safetensors"), conditions=())
        here = Path.cwd()
        os.chdir(folder.parent)
        result = CliRunner().invoke(app, [str(word).format(folder.name) for word in words], prog_name="coset")
        os.chdir(here)
        assert result.exit_code == 0, result.stderr
        for file in folder.glob(lost):
            file.unlink()

    return make


def _loads(text: str) -> Callable[[Path], object]:
    return lambda path: getattr(coset, text)(path)


PLAIN = ("align", "good.safetensors", "{}", "--symmetry", "good.json", "-o", "out.safetensors")
EVALUATE = ("evaluate", "{}", *MODEL, *DATA, "--samples", 2)
FIT_AGAIN = ("fit", *MODEL, *DATA, "--method", "map", "--out", "{}", "--set", "epochs=2", "--set", "batch_size=256")
WORK = ("--work", "{}", "-o", "out.safetensors", "--overwrite")
CURVE = ("curve", "good.safetensors", "other.safetensors", *MODEL, *DATA, "-o", "{}", "--epochs", 1, "--points", 2)
PAM = (*CURVE, "--pam", "--set", "pam.iterations=1", "--set", "pam.epochs=1", "--set", "batch_size=256")
COLLECT = ("flow", "collect", *MODEL, *DATA, "--runs", 4, "--chunk", 2, "--epochs", 1, "--batch-size", 256, *WORK)
LEARN = ("flow", "fit", "nets.safetensors", *SMALL, *WORK)
SAMPLE = ("flow", "sample", "flow.safetensors", "-n", 65, "--steps", 1, *WORK)
MEASURE = ("flow", "evaluate", "nets.safetensors", *DATA, "--against", "nets.safetensors", "--pairs", 2)
KINDS: dict[str, Kind] = {
    "checkpoint": Kind("x.safetensors", lambda p: coset.save_state(random_state(1), p), _loads("load_state"), PLAIN),
    "pickle": Kind("x.pt", lambda p: torch.save({"model": random_state(1)}, p), _loads("load_state"), EVALUATE),
    "shards": Kind("shards", _shards, _loads("load_state"), (*PLAIN[:-1], "out")),
    "element": Kind("x.safetensors", _element, load_element, ("apply", "{}", "good.safetensors", *PLAIN[-2:])),
    "symmetry": Kind(
        "x.json",
        lambda p: p.write_text(symmetry().to_json()),
        lambda p: symmetry_of_file(json_reader.read_text(p)),
        ("align", "good.safetensors", "good.safetensors", "--symmetry", "{}", *PLAIN[-2:]),
    ),
    "curve": Kind(
        "x.safetensors",
        lambda p: coset.Bezier(random_state(1), random_state(3), random_state(2)).save(p),
        _loads("load_curve"),
        ("barrier", "{}", *MODEL, *DATA, "--points", 2),
    ),
    "population": Kind(
        "x.safetensors",
        lambda p: population().save(p),
        coset.Population.load,
        ("flow", "fit", "{}", "-o", "out.safetensors", *SMALL),
    ),
    "flow": Kind(
        "x.safetensors",
        _flow,
        coset.Flow.load,
        ("flow", "sample", "{}", "-n", 2, "--steps", 1, "--condition", "loss=0.1", "-o", "out.safetensors"),
    ),
    "flat flow": Kind(
        "x.safetensors",
        lambda p: _flow(p, "euclidean", ()),
        coset.Flow.load,
        ("flow", "sample", "{}", "-n", 2, "--steps", 1, "--log-prob", "-o", "out.safetensors"),
    ),
    "run": Kind("run", _half_run, _fit, FIT_AGAIN),
    "finished run": Kind("run", _fit, _fit, FIT_AGAIN),
    "curve folder": Kind("run", _work(PAM, "curve.safetensors"), None, PAM),
    "finished curve": Kind("run", _work(PAM, "nothing"), None, PAM),
    "collection": Kind("run", _work(COLLECT, "chunk-00001*"), None, COLLECT),
    "flow folder": Kind("run", _work(LEARN, "nothing"), None, LEARN),
    "samples folder": Kind("run", _work(SAMPLE, "samples-00001*"), None, SAMPLE),
    "evaluation": Kind("run", _work((*MEASURE, "--work", "{}"), "nothing"), None, (*MEASURE, "--work", "{}")),
    "record": Kind("x.json", _record, None, ("reproduce", "--redraw", "{}")),
    **{
        kind: Kind(
            "x.safetensors",
            lambda p, kind=kind: _solutions()[kind]().save(p),  # type: ignore[misc]
            _loads("load"),
            EVALUATE,
        )
        for kind in _solutions()
    },
}


def make_all(folder: Path, names: Iterable[str] = KINDS) -> None:
    """A folder of each kind, with the file and what its command needs beside it."""
    for name in names:
        (folder / name).mkdir(parents=True)
        coset.save_state(random_state(4), folder / name / "good.safetensors")
        (folder / name / "good.json").write_text(symmetry().to_json())
        KINDS[name].make(folder / name / KINDS[name].name)


def copy(source: Path, target: Path) -> None:
    """The files of a kind, in a folder of their own."""
    shutil.copytree(source, target)
    os.chmod(target, 0o755)  # noqa: PTH101
