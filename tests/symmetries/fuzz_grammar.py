"""Random small models from a seed: a list of productions, each of which adds steps to a program.

A production sees the values computed so far, whose axes have a kind each: b the batch, t time, s a place of an image,
u units. It asks nothing of sizes, so any production can be left out of a program, which makes failures short.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from net_family import Net
from torch import Tensor, nn

MOST_NUMBERS = 600
WIDTHS = (2, 3, 3, 4, 4, 6)
COUNT, FLAG, LEVEL = "count", "flag", "level"
"""Arguments that are a number of rounds, a switch, and a real number."""
DEFAULTS: dict[str, float] = {COUNT: 2, FLAG: False, LEVEL: 1.0}
OTHERS: dict[str, tuple[float, ...]] = {COUNT: (0, 1, 3, 5), FLAG: (True,), LEVEL: (0.0, 0.7, 3.0)}

Production = Callable[["Builder"], None]
PRODUCTIONS: dict[str, Production] = {}


class Skip(Exception):  # noqa: N818
    """A production that has nothing to work on, or whose result is of no use."""


@dataclass(frozen=True)
class Spec:
    """What a program is made from: the kind of its inputs, productions with seeds of their own, and its results.

    single
        whether it is inferred in single precision with the weights that layers begin with
    """

    inputs: str
    productions: tuple[tuple[str, int], ...]
    outputs: tuple[str, int]
    single: bool = False

    def __str__(self) -> str:
        steps = ", ".join(f"{name}:{seed}" for name, seed in self.productions)
        return f"{self.inputs} -> {steps} -> {':'.join(map(str, self.outputs))}"


def production(weight: int = 1) -> Callable[[Production], Production]:
    def register(make: Production) -> Production:
        assert make.__name__ not in PRODUCTIONS
        PRODUCTIONS[make.__name__] = make
        WEIGHTS.append(weight)
        return make

    return register


WEIGHTS: list[int] = []


class Program(nn.Module):
    """Steps in order, each a module that reads results of earlier ones; `told` are numbers that calls do not omit."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.steps = nn.ModuleList()
        self.reads: list[tuple[int | str, ...]] = []
        self.labels: list[str] = []
        self.numbers: set[str] = set()
        self.told: dict[str, float] = {}

    def forward(self, *args: Tensor, count: int = 2, flag: bool = False, level: float = 1.0) -> Any:
        values: list[Any] = list(args)
        numbers = {COUNT: count, FLAG: flag, LEVEL: level}
        result: Any = None
        for step, reads in zip(self.steps, self.reads, strict=True):
            result = step(*[values[k] if isinstance(k, int) else numbers[k] for k in reads])
            values.append(result)
        return result

    def __str__(self) -> str:
        lines = [f"inputs {', '.join(self.names)}{f', {self.told}' if self.told else ''}"]
        for k, (label, reads) in enumerate(zip(self.labels, self.reads, strict=True), len(self.names)):
            lines.append(f"{k} = {label}({', '.join(map(str, reads))})")
        return "\n".join(lines)


INPUTS: dict[str, tuple[tuple[str, str, tuple[int, ...]], ...]] = {
    "features": (("x", "bu", (4, 5)),),
    "sequence": (("x", "btu", (2, 5, 3)),),
    "sequence and memory": (("x", "btu", (2, 5, 3)), ("memory", "btu", (2, 7, 3))),
    "sequence and state": (("x", "btu", (2, 5, 3)), ("state", "bu", (2, 5))),
    "tokens": (("tokens", "bt", (2, 5)),),
    "tokens and lengths": (("tokens", "bt", (2, 5)), ("mask", "bt", (2, 5))),
    "signal": (("x", "but", (2, 3, 7)),),
    "image": (("x", "buss", (2, 3, 5, 5)),),
    "pair": (("x", "bu", (4, 5)), ("y", "bu", (4, 3))),
}


class Builder:
    """Makes a program; keeps an example of each value, and of what kind its axes are."""

    def __init__(self, spec: Spec) -> None:
        self.kinds = [kinds for _, kinds, _ in INPUTS[spec.inputs]]
        generator = torch.Generator().manual_seed(1)
        self.values: list[Tensor] = []
        for name, _, shape in INPUTS[spec.inputs]:
            if name == "tokens":
                self.values.append(torch.randint(5, shape, generator=generator))
            elif name == "mask":
                self.values.append(torch.rand(shape, generator=generator) > 0.2)
            else:
                self.values.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        self.inputs = list(self.values)
        self.program = Program([name for name, _, _ in INPUTS[spec.inputs]])
        self.rng = random.Random(0)
        self.unread: set[int] = set()
        self.label = ""

    def number(self, name: str) -> str:
        """An argument of the program that is no tensor, left to its default or not."""
        self.program.numbers.add(name)
        if self.chance():
            self.program.told[name] = DEFAULTS[name]
        return name

    def pick(self, fits: Callable[[str, Tensor], bool]) -> int:
        """A value that fits, most likely a late one."""
        choices = [
            k
            for k, (kinds, x) in enumerate(zip(self.kinds, self.values, strict=True))
            if x.is_floating_point() and fits(kinds, x)
        ]
        if not choices:
            raise Skip
        inner = [k for k in choices if k >= len(self.inputs)]
        choices = inner if inner and self.rng.random() < 0.9 else choices
        return choices[-1] if self.rng.random() < 0.6 else self.rng.choice(choices[-4:])

    def units_last(self) -> int:
        return self.pick(lambda kinds, x: kinds.endswith("u") and kinds.startswith("b"))

    def some(self) -> int:
        return self.pick(lambda kinds, x: True)

    def like(self, k: int) -> int:
        """A value of the same kind and shape."""
        return self.pick(lambda kinds, x: kinds == self.kinds[k] and x.shape == self.values[k].shape)

    def width(self) -> int:
        return self.rng.choice(WIDTHS)

    def chance(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def axis(self, k: int, kinds: str = "utsb") -> int:
        """An axis of one of these kinds, counted from the end."""
        axes = [d for d, kind in enumerate(self.kinds[k]) if kind in kinds]
        if not axes:
            raise Skip
        return self.rng.choice(axes) - len(self.kinds[k])

    def add(
        self,
        label: str,
        reads: Sequence[int | str],
        function: Callable[..., Any],
        kinds: str | None = None,
        **parts: nn.Module | Tensor,
    ) -> int:
        """A step, if it works on the examples. Its result has the kinds of its first operand unless told."""
        step = Net(function, **parts).double().eval()
        xs = [self.values[k] if isinstance(k, int) else DEFAULTS[k] for k in reads]
        with torch.no_grad():
            try:
                result = step(*[x.clone() if isinstance(x, Tensor) else x for x in xs])
            except (RuntimeError, IndexError, ValueError, TypeError, AssertionError) as error:
                raise Skip(f"{label}: {error}") from error
        first = reads[0]
        kinds = kinds if kinds is not None else self.kinds[first] if isinstance(first, int) else ""
        if not isinstance(result, Tensor) or result.dim() != len(kinds) or not 0 < result.numel() <= MOST_NUMBERS:
            raise Skip(f"{label}: result")
        if result.is_floating_point() and not bool(result.isfinite().all()):
            raise Skip(f"{label}: not finite")
        self.program.steps.append(step)
        self.program.reads.append(tuple(reads))
        self.program.labels.append(label)
        self.values.append(result)
        self.kinds.append(kinds)
        self.unread -= {k for k in reads if isinstance(k, int)}
        self.unread.add(len(self.values) - 1)
        return len(self.values) - 1

    def linear(self, k: int, width: int | None = None, bias: bool | None = None) -> int:
        n = self.values[k].shape[-1]
        bias = self.chance(0.75) if bias is None else bias
        width = width or self.width()
        layer = nn.Linear(n, width, bias=bias)
        name = f"linear {n}-{width}{'' if bias else ' no bias'}"
        return self.add(name, [k], lambda m, x: m.layer(x), self.kinds[k], layer=layer)


def par(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64))


def build(spec: Spec) -> tuple[Program, tuple[Any, ...]]:
    """The program of a spec with example arguments; productions that do not fit are left out."""
    torch.manual_seed(0)
    builder = Builder(spec)
    builder.rng = random.Random(spec.outputs[1])
    for k, kinds in enumerate(builder.kinds[: len(builder.inputs)]):
        if builder.chance(0.9):
            _stem(builder, k, kinds)
    for name, seed in spec.productions:
        builder.rng = random.Random(seed)
        try:
            PRODUCTIONS[name](builder)
        except Skip:
            continue
    name, seed = spec.outputs
    builder.rng = random.Random(seed)
    OUTPUTS[name](builder)
    return builder.program.eval(), tuple(builder.inputs)


def draw(seed: int) -> Spec:
    """The spec of a seed."""
    rng = random.Random(f"model {seed}")
    names = list(PRODUCTIONS)
    count = rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8))
    productions = tuple((rng.choices(names, WEIGHTS)[0], rng.randrange(10**6)) for _ in range(count))
    inputs = rng.choice(list(INPUTS))
    return Spec(inputs, productions, (rng.choice(list(OUTPUTS)), rng.randrange(10**6)), rng.random() < 0.3)


def _stem(builder: Builder, k: int, kinds: str) -> None:
    """Units to begin with."""
    width = builder.width()
    if kinds == "bt":
        if builder.values[k].dtype != torch.bool:
            builder.add("embedding", [k], lambda m, t: m.table(t), "btu", table=nn.Embedding(5, width))
    elif kinds.endswith("u"):
        builder.linear(k, width)
    else:
        layer = (nn.Conv1d if kinds == "but" else nn.Conv2d)(builder.values[k].shape[1], width, 3, padding=1)
        builder.add(f"conv {width}", [k], lambda m, x: m.layer(x), layer=layer)


def _ends(builder: Builder) -> list[int]:
    """Values that nobody reads, or the last."""
    ends = [k for k in sorted(builder.unread) if builder.values[k].is_floating_point()]
    return ends or [len(builder.values) - 1]


def _pooled(builder: Builder, k: int) -> int:
    """(b, u) from anything: units in the middle of the axes go last, other axes are averaged."""
    kinds = builder.kinds[k]
    if not builder.values[k].is_floating_point():
        k = builder.add("to float", [k], lambda m, x: x * m.one, one=torch.ones((), dtype=torch.float64))
    batch = kinds.index("b") if "b" in kinds else None
    rest = [d for d, kind in enumerate(kinds) if kind in "ts"]
    mean = builder.chance()

    def pool(m: Net, x: Tensor) -> Tensor:
        if batch is None:
            return x.flatten()[None].mean(1, keepdim=True) if not x.dim() else x.flatten()[None]
        if rest:
            x = x.mean(rest, keepdim=True) if mean else x.amax(rest, keepdim=True)
        return x.movedim(batch, 0).reshape(x.shape[batch], -1)

    return builder.add(f"pool {kinds}", [k], pool, "bu")


def _as_many(x: Tensor, first: Tensor) -> Tensor:
    return x if len(x) == len(first) else x.mean(0, keepdim=True).expand(len(first), -1)


def one_head(builder: Builder) -> None:
    pooled = [_pooled(builder, k) for k in _ends(builder)]
    if builder.chance(0.7):
        pooled = [builder.linear(k, 2) for k in pooled]
    builder.add("joined", pooled, lambda m, *xs: torch.cat([_as_many(x, xs[0]) for x in xs], 1))


def heads(builder: Builder) -> None:
    """Several results in a dictionary."""
    ends = [builder.linear(_pooled(builder, k), 2) for k in _ends(builder)]
    _finish(builder, ends, lambda m, *xs: {f"head {k}": x for k, x in enumerate(xs)})


def places(builder: Builder) -> None:
    """A result for every place, next to the pooled ones, in a tuple."""
    ends = [
        builder.linear(k, 2)
        if builder.kinds[k].endswith("u") and builder.values[k].is_floating_point()
        else builder.linear(_pooled(builder, k), 2)
        for k in _ends(builder)
    ]
    _finish(builder, ends, lambda m, *xs: (xs[0], list(xs[1:])) if len(xs) > 1 else xs[0])


def energy(builder: Builder) -> None:
    """Sums of squares or of tanh."""
    pooled = [_pooled(builder, k) for k in _ends(builder)]
    square = builder.chance()
    _finish(builder, pooled, lambda m, *xs: tuple((x**2).sum(1) if square else x.tanh().sum(1) for x in xs))


def _finish(builder: Builder, reads: Sequence[int], function: Callable[..., Any]) -> None:
    builder.program.steps.append(Net(function))
    builder.program.reads.append(tuple(reads))
    builder.program.labels.append("results")


OUTPUTS: dict[str, Production] = {"one head": one_head, "heads": heads, "places": places, "energy": energy}
