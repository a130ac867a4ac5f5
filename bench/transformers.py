"""Transformers trained apart and merged: the barrier by every group and method, beside those that are published.

Three networks of each family, from other initialisations and orders of the data, make three pairs. Families are GPTs
with RMS norm (gpt-rms) and layer norm (gpt-ln) and a Llama on the characters of Tiny Shakespeare, and vision
transformers on CIFAR-10 and CIFAR-100. A row is what is done to a pair before the straight line between them is
evaluated at 11 points on test data. Networks and rows are kept in a work folder, so that a run that was stopped goes
on; rows are measured anew when the library has changed. What a record says of other families and rows stays.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import nn

import coset
from bench.decoupled_decay import AdamW
from bench.hardware import wait
from bench.record import Out, device_name, versions
from coset import Split, data, zoo
from coset.cli import console
from coset.cli.options import DeviceOption
from coset.core.errors import CosetError
from coset.core.files import write_json
from coset.core.resume import Stage, digest, tensor_digest
from coset.core.state import State

WORK = Path("build/transformers")
POINTS = 11
LEARNING = 3000  # steps
TEXT = AdamW(
    rate=1e-3, weight_decay=0.1, epochs=5, batch_size=64, schedule="onecycle", precision="bfloat16"
)  # 1225 steps  # fmt: skip
IMAGES = AdamW(
    rate=1e-3, weight_decay=0.05, epochs=60, batch_size=512, schedule="onecycle", precision="bfloat16",
    augment=True, compile=True,
)  # fmt: skip
SMOKE = {"epochs": 1, "batch_size": 16, "precision": "float32", "compile": False}


@dataclass(frozen=True)
class Scale:
    """How large networks and data are; None is all there is.

    stride: from one window of text to the next. train: examples. windows, images: that are evaluated. matched: examples
    that activations are compared on.
    """

    dim: int
    depth: int
    context: int
    stride: int
    train: int | None
    windows: int
    images: int | None
    matched: int


SCALES = {
    "full": Scale(
        dim=256, depth=6, context=256, stride=64, train=None, windows=256, images=None, matched=512
    ),
    "smoke": Scale(
        dim=64, depth=2, context=32, stride=16, train=480, windows=16, images=64, matched=32
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Networks of one kind: `model` is a spec without its sizes. published: barriers by row (arXiv 2506.22712)."""

    data: str
    model: str
    training: AdamW
    published: Mapping[str, float]

    @property
    def is_text(self) -> bool:
        """Whether it continues text, and does not classify images."""
        return self.training is TEXT

    def spec(self, scale: Scale) -> str:
        """The model with its sizes, as the zoo builds it."""
        sizes = f"dim={scale.dim},depth={scale.depth}"
        more = f"context={scale.context}" if self.is_text else f"hidden={2 * scale.dim}"
        return f"{self.model},{sizes},{more}"

    def method(self, scale: Scale) -> AdamW:
        """How its networks are trained."""
        if scale is SCALES["full"]:
            return self.training
        return AdamW(**{**vars(self.training), **SMOKE})

    def splits(self, scale: Scale, device: str) -> tuple[Split, Split]:
        """What is trained on, and what is evaluated."""
        if not self.is_text:
            sets = data.load(self.data, device=device)
            return _first(sets.train, scale.train), _first(sets.test, scale.images)
        sets = data.load(self.data, device=device, context=scale.context)
        return _first(windows(sets.train, scale.stride), scale.train), _first(sets.test, scale.windows)


GPT = "gpt:vocab=65,heads=4,tied=false"
VIT = "vit:heads=8,patch=4"
# Of a GPT-2 (6 layers, 4 heads, width 256) on Shakespeare, and of a ViT of these sizes.
SHAKESPEARE = {"naive": 2.02, "weights": 0.34, "activations": 1.43, "learned": 0.02}
FAMILIES = {
    "gpt-rms": Family("tinyshakespeare", f"{GPT},norm=rms", TEXT, SHAKESPEARE),
    "gpt-ln": Family("tinyshakespeare", f"{GPT},norm=ln", TEXT, SHAKESPEARE),
    "llama": Family(
        "tinyshakespeare", f"{GPT},norm=rms,rope=true,swiglu=true,kv_heads=2", TEXT, SHAKESPEARE
    ),
    "vit-cifar10": Family(
        "cifar10", f"{VIT},classes=10", IMAGES, {"naive": 1.69, "weights": 0.36, "activations": 1.27, "learned": 0.00}
    ),
    "vit-cifar100": Family(
        "cifar100", f"{VIT},classes=100", IMAGES, {"naive": 2.46, "weights": 0.69, "activations": 2.11, "learned": 0.00}
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pair:
    """Two networks and what rows need beside them; examples are for methods that run the model."""

    a: State
    b: State
    sym: coset.Symmetry
    model: nn.Module
    examples: Split

    @cached_property
    def folded(self) -> tuple[State, State]:
        """The same functions with gains of one, so that streams can turn."""
        return coset.fold(self.a, self.sym), coset.fold(self.b, self.sym)


Ends = tuple[State, State]
Row = Callable[[Pair], Ends]


def _naive(pair: Pair) -> Ends:
    return pair.a, pair.b


def _folded(pair: Pair) -> Ends:
    return pair.folded


def _permutations(pair: Pair) -> Ends:
    sym = pair.sym.without_matrices()
    return pair.a, sym.act(coset.align(pair.a, pair.b, sym).element, pair.b)


def _by(method: Callable[[], str | coset.AlignMethod]) -> Row:
    """The second folded network, moved by the whole group."""

    def ends(pair: Pair) -> Ends:
        a, b = pair.folded
        match = coset.align(a, b, pair.sym, method(), pair.model, pair.examples)
        return a, pair.sym.act(match.element, b)

    return ends


ROWS: dict[str, Row] = {
    "naive": _naive,
    "folded": _folded,
    "permutations": _permutations,
    "weights": _by(lambda: "weights"),
    "activations": _by(lambda: "activations"),
    "learned": _by(lambda: coset.Learned(steps=LEARNING, precision="bfloat16")),
}
QUICK = ",".join(name for name in ROWS if name != "learned")


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[FAMILY]...", help="All if none is named.")] = None,
    device: DeviceOption = "cpu",
    networks: Annotated[int, typer.Option(help="Of each family; all pairs of them are measured.", min=2)] = 3,
    rows: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(ROWS)}.")] = QUICK,
    scale: Annotated[str, typer.Option(help="full, or smoke to see that everything runs.")] = "full",
    work: Annotated[Path, typer.Option(help="Where networks and rows are kept.")] = WORK,
    out: Out = None,
) -> None:
    """Train, align, evaluate, print a table for each family, and write the record after each."""
    families = names or list(FAMILIES)
    _check("family", families, FAMILIES)
    _check("row", rows.split(","), ROWS)
    _check("scale", [scale], SCALES)
    command = f"python -m bench transformers --device {device}"
    command += (f" --networks {networks}" if networks != 3 else "") + (f" --scale {scale}" if scale != "full" else "")
    record: dict[str, Any] = {"command": command, "scale": scale, "families": {}}
    if out is not None and out.exists():
        record["families"] = _families_of(out, scale)
    for name in families:
        run = Run(name, FAMILIES[name], SCALES[scale], device, work / f"{name}-{scale}")
        result = run.measure(networks, rows.split(","), record["families"].get(name))
        record["families"][name] = result | {"device": device_name(device), "versions": versions()}
        console.stdout().print(table(name, result))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, record)


def _check(what: str, words: Sequence[str], choices: Mapping[str, Any]) -> None:
    for word in words:
        if word not in choices:
            raise CosetError(f"There is no {what} {word!r}, only {', '.join(choices)}.")


def _families_of(out: Path, scale: str) -> dict[str, Any]:
    before = json.loads(out.read_text(encoding="utf-8"))
    if before.get("scale") != scale:
        raise CosetError(f"{out} holds a record of another scale, {before.get('scale')}: choose another file.")
    families: dict[str, Any] = before["families"]
    return families


@dataclass(frozen=True, eq=False)
class Run:
    """The measurements of one family, kept in a folder."""

    name: str
    family: Family
    scale: Scale
    device: str
    folder: Path

    def measure(self, networks: int, rows: Sequence[str], before: Mapping[str, Any] | None) -> dict[str, Any]:
        """Networks, and all rows of all pairs; rows that `before` has of the same networks stay."""
        start = time.perf_counter()
        spec = self.family.spec(self.scale)
        train, test = self.family.splits(self.scale, self.device)
        model = zoo.build(spec)
        states = self.train(model, train, networks)
        digests = [tensor_digest(one[name] for name in sorted(one)) for one in states]
        self.say(f"{networks} networks after {time.perf_counter() - start:.0f} s")
        sym = coset.symmetry(model, zoo.example_input(model))
        scores = [coset.evaluate(one, model, test) for one in states]
        examples = train.subset(min(self.scale.matched, len(train)), torch.Generator().manual_seed(0))
        model = model.to(self.device)
        measured: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
        for i, j in combinations(range(networks), 2):
            pair = Pair(states[i], states[j], sym, model, examples)
            for row in rows:
                stage = Stage(self.folder / "rows", f"{row}-{i}-{j}-{self.key(row, digests[i], digests[j])}.json")
                point = stage.value({"row": row, "pair": [i, j]}, lambda: curve(ROWS[row], pair, test))  # noqa: B023
                measured[row].append(point.value)
                self.say(f"{row} of {i} and {j}: {point.value['barrier']:.4f}, {point.value['seconds']:.1f} s")
        if before is not None and before["networks"] == digests:
            measured = {**{row: v["pairs"] for row, v in before["rows"].items()}, **measured}
        return {
            "model": spec,
            "data": self.family.data,
            "training": str(self.family.method(self.scale)),
            "networks": digests,
            "loss": mean_and_error([one.nll for one in scores]),
            "accuracy": mean_and_error([_share(one.accuracy) for one in scores]),
            "largest change of a loss": drift(measured, [one.nll for one in scores]),
            "published": dict(self.family.published),
            "rows": {row: summary(measured[row]) for row in ROWS if row in measured},
        }

    def train(self, model: nn.Module, split: Split, networks: int) -> list[State]:
        """The networks, those that are not kept trained now."""
        method = self.family.method(self.scale)

        def say(epoch: coset.Epoch) -> None:
            if epoch.epoch % 10 == 0 or epoch.epoch == epoch.epochs:
                self.say(f"network {epoch.replica} epoch {epoch.epoch}: {epoch.accuracy:.4f}, {epoch.seconds:.2f} s")

        folder, progress = self.folder / "networks", coset.on_epoch(say)
        solutions = coset.fit(model, split, method, networks, device=self.device, out=folder, progress=progress)
        return [dict(solution.mean) for solution in solutions]

    def key(self, row: str, *networks: str) -> str:
        """What else a row depends on, its code among it."""
        return digest({"networks": networks, "scale": vars(self.scale), "device": self.device, "code": code_digest()})

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)


def curve(row: Row, pair: Pair, test: Split) -> dict[str, Any]:
    """Losses and accuracies along the line between the ends of a row, and the seconds that making these took."""
    wait()
    start = time.perf_counter()
    a, b = row(pair)
    wait()
    seconds = time.perf_counter() - start
    result = coset.barrier(coset.geodesic(a, b), pair.model, test, points=POINTS)
    assert result.accuracy is not None  # the targets are classes
    return {"barrier": result.height, "loss": result.loss, "accuracy": result.accuracy, "seconds": seconds}


def _share(accuracy: float | None) -> float:
    assert accuracy is not None  # the targets are classes
    return accuracy


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over pairs, with their standard errors, of what one row measured."""
    half = POINTS // 2
    figures = {
        "barrier": [one["barrier"] for one in pairs],
        "loss halfway": [one["loss"][half] for one in pairs],
        "accuracy halfway": [one["accuracy"][half] for one in pairs],
        "seconds": [one["seconds"] for one in pairs],
    }
    return {name: mean_and_error(values) for name, values in figures.items()} | {"pairs": list(pairs)}


def mean_and_error(values: Sequence[float]) -> list[float | None]:
    """The mean and its standard error, which one value does not have."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return [statistics.fmean(values), error]


def drift(measured: Mapping[str, Sequence[Mapping[str, Any]]], losses: Sequence[float]) -> float:
    """By how much a row changed the loss of a network at most: by rounding, if it left the functions alone."""
    pairs = list(combinations(losses, 2))
    both = [(one["loss"], ends) for row in measured.values() for one, ends in zip(row, pairs, strict=True)]
    return max(float(abs(line[k] - ends[k])) for line, ends in both for k in (0, -1))


def table(name: str, result: Mapping[str, Any]) -> Table:
    """A family's rows, means over pairs with their standard errors."""
    ends = f"loss {_figure(result['loss'])}, accuracy {_figure(result['accuracy'])}"
    changed = f"largest change of the loss of an end {result['largest change of a loss']:.1e}"
    columns = ("row", "barrier", "loss halfway", "accuracy halfway", "seconds", "published barrier")
    lines = []
    for row, values in result["rows"].items():
        published = result["published"].get(row)
        figures = [_figure(values[column]) for column in columns[1:-1]]
        lines.append([row, *figures, "" if published is None else f"{published:.2f}"])
    return console.table(f"{name}: {ends}; {changed}", columns, lines, numbers=columns[1:])


def _figure(value: Sequence[float | None]) -> str:
    mean, error = value
    return f"{mean:.3f}" + ("" if error is None else f" \u00b1 {error:.3f}")


def windows(split: Split, stride: int) -> Split:
    """Windows of a text that begin at every `stride`-th character of the joined windows of a split."""
    text = torch.cat([split.inputs.flatten(), split.targets[-1, -1:]])
    long = text.unfold(0, split.inputs.shape[1] + 1, stride)
    return Split(long[:, :-1].contiguous(), long[:, 1:].contiguous())


def _first(split: Split, count: int | None) -> Split:
    return Split(split.inputs[:count], split.targets[:count])


@cache
def code_digest() -> str:
    """Other characters where the library or this file is another one: what they measured is then no longer theirs."""
    content = hashlib.sha256()
    for path in sorted([*Path(coset.__file__).parent.rglob("*.py"), Path(__file__)]):
        content.update(path.read_bytes())
    return content.hexdigest()[:16]
