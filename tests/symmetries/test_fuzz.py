"""Random programs: whatever they compute, the inferred symmetry preserves it, and inference never refuses them.

A program is a list of random steps on tensors (batch, n) and (batch, k, n) with parameters in between. Its group
is not known, so completeness is not checked here, only that every claim is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import lin, par
from oracle import check_function, infer
from torch import Tensor, nn

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "abs": torch.abs,
    "square": torch.square,
    "sin": torch.sin,
    "neg": torch.neg,
    "sigmoid": torch.sigmoid,
    "leaky": lambda x: F.leaky_relu(x, 0.3),
    "softsign": F.softsign,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "plus one": lambda x: x + 1,
    "times": lambda x: x * -1.5,
    "clamp": lambda x: x.clamp(-1, 1),
    "cube": lambda x: x**3,
    "scaled exp": lambda x: torch.exp(-x.abs()),
    "sign": lambda x: x.sign() * 0.5 + x,
    "rounded": lambda x: (4 * x).round() / 4 + x,
}
ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "sort": lambda x: x.sort(-1).values,
    "minus mean": lambda x: x - x.mean(-1, keepdim=True),
    "over std": lambda x: x / (x.std(-1, keepdim=True) + 0.1),
    "over max": lambda x: x / (x.abs().amax(-1, keepdim=True) + 0.1),
    "plus max": lambda x: x + x.max(-1, keepdim=True)[0],
    "normalise": lambda x: F.normalize(x, dim=-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
    "top two": lambda x: x * (x >= x.topk(2, -1).values[..., -1:]),
    "above mean": lambda x: torch.where(x > x.mean(-1, keepdim=True), x, -x),
    "zeroed front": lambda x: torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], -1),
    "swapped halves": lambda x: torch.cat([x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1),
    "by number": lambda x: x * torch.arange(1, x.shape[-1] + 1, dtype=x.dtype),
    "gathered": lambda x: x.gather(-1, x.argsort(-1)),
    "best": lambda x: x + x.gather(-1, x.argmax(-1, keepdim=True)),
    "median": lambda x: x - x.median(-1, keepdim=True).values,
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
}


class Program(nn.Module):
    """Steps drawn from a seed; parameters are made as the steps need them."""

    def __init__(self, seed: int, length: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.weights = nn.ParameterList()
        self.steps: list[tuple[str, list[int], Callable[..., Tensor]]] = []
        choice = random.Random(seed)
        shapes: list[tuple[int, ...]] = [(3,)]
        self.use(shapes, "linear", [0], self.linear(3, choice.choice([4, 6, 8])))
        while len(self.steps) < length:
            self.draw(choice, shapes)
        last = [k for k in range(1, len(shapes)) if not any(k in inputs for _, inputs, _ in self.steps)]
        width = sum(torch.zeros(shapes[k]).numel() for k in last)
        head = self.linear(width, 2)
        self.steps.append(("head", last, lambda *xs: head(torch.cat([x.flatten(1) for x in xs], 1))))

    def linear(self, a: int, b: int) -> Callable[[Tensor], Tensor]:
        layer = lin(a, b, bias=random.Random(a * 31 + b).random() < 0.7)
        self.parts.append(layer)
        return layer

    def parameter(self, *shape: int) -> Callable[[], Tensor]:
        self.weights.append(par(*shape))
        k = len(self.weights) - 1
        return lambda: self.weights[k]

    def use(self, shapes: list[tuple[int, ...]], name: str, inputs: list[int], f: Callable[..., Tensor]) -> None:
        with torch.no_grad():
            try:
                result = f(*[torch.randn(2, *shapes[k]) for k in inputs])
            except (RuntimeError, IndexError, ValueError):
                return
        if 0 < result[0].numel() <= 24 and result.dim() in (2, 3):
            shapes.append(tuple(result.shape[1:]))
            self.steps.append((name, inputs, f))

    def draw(self, choice: random.Random, shapes: list[tuple[int, ...]]) -> None:
        k = choice.randrange(max(0, len(shapes) - 4), len(shapes))
        n = shapes[k][-1]
        kind = choice.choice(
            [
                "unary",
                "unary",
                "along",
                "linear",
                "linear",
                "add",
                "mul",
                "cat",
                "part",
                "view",
                "turn",
                "reduce",
                "outer",
                "repeat",
                "gain",
                "norm",
                "stack",
                "mixed",
                "matmul",
                "every",
                "pad",
                "table",
            ]
        )
        same = [j for j, shape in enumerate(shapes) if shape == shapes[k]]
        j = choice.choice(same)
        if kind == "unary":
            name = choice.choice(list(UNARY))
            self.use(shapes, name, [k], UNARY[name])
        elif kind == "along":
            name = choice.choice(list(ALONG))
            self.use(shapes, name, [k], ALONG[name])
        elif kind == "linear":
            self.use(shapes, kind, [k], self.linear(n, choice.choice([2, 3, 4, 6])))
        elif kind == "add":
            self.use(shapes, kind, [k, j], lambda a, b: a + b)
        elif kind == "mul":
            self.use(shapes, kind, [k, j], lambda a, b: a * b)
        elif kind == "cat":
            other = choice.choice([i for i, s in enumerate(shapes) if s[:-1] == shapes[k][:-1]])
            self.use(shapes, kind, [k, other], lambda a, b: torch.cat([a, b], -1))
        elif kind == "part":
            a = choice.randrange(n)
            b = choice.randrange(a, n) + 1
            self.use(shapes, f"part {a}:{b}", [k], lambda x: x[..., a:b])
        elif kind == "view":
            size = choice.choice([2, 3, 4])
            self.use(shapes, f"view {size}", [k], lambda x: x.reshape(x.shape[0], size, -1))
        elif kind == "turn":
            self.use(shapes, kind, [k], lambda x: x.transpose(1, 2) if x.dim() == 3 else x[:, :, None] * x[:, None])
        elif kind == "reduce":
            name = choice.choice(["sum", "mean", "amax", "prod"])
            axis = choice.choice([1, -1])
            self.use(shapes, f"{name} {axis}", [k], lambda x: getattr(x, name)(axis) if x.dim() == 3 else x.flatten(1))
        elif kind == "outer":
            other = choice.randrange(len(shapes))
            self.use(shapes, kind, [k, other], lambda a, b: a.flatten(1)[:, :, None] * b.flatten(1)[:, None])
        elif kind == "repeat":
            wide = choice.random() < 0.5
            self.use(shapes, kind, [k], lambda x: torch.cat([x, x], -1) if wide else x.repeat_interleave(2, -1))
        elif kind == "gain":
            w = self.parameter(n)
            shift = choice.random() < 0.5
            self.use(shapes, kind, [k], lambda x: x + w() if shift else x * w())
        elif kind == "norm":
            groups = choice.choice([1, 2, 3])
            flat = torch.zeros(shapes[k]).numel()
            if flat < 2 * groups:
                return
            w = self.parameter(flat)
            self.use(shapes, f"group norm {groups}", [k], lambda x: F.group_norm(x.flatten(1), groups, w()))
        elif kind == "stack":
            axis = choice.choice([1, -1])
            self.use(shapes, f"stack {axis}", [k, j], lambda a, b: torch.stack([a, b], axis))
        elif kind == "mixed":
            w = self.parameter(*shapes[k], 3)
            letters = "ij"[: len(shapes[k])]
            keep = choice.random() < 0.5 and len(letters) == 2
            equation = f"b{letters},{letters}o->b{'i' if keep else ''}o"
            self.use(shapes, equation, [k], lambda x: torch.einsum(equation, x, w()))
        elif kind == "matmul":
            self.use(shapes, kind, [k, j], lambda a, b: a @ b.transpose(-1, -2) if a.dim() == 3 else a * b)
        elif kind == "every":
            start = choice.choice([0, 1])
            self.use(shapes, f"every other {start}", [k], lambda x: x[..., start::2])
        elif kind == "pad":
            before = choice.choice([0, 1])
            self.use(shapes, f"pad {before}", [k], lambda x: F.pad(x, (before, 1)))
        elif kind == "table":
            # After a linear map nothing is exactly tied, as copies would be.
            w, layer = self.parameter(5, 3), self.linear(n, 5)
            self.use(shapes, kind, [k], lambda x: F.embedding(layer(x).argmax(-1), w()))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for _, inputs, f in self.steps:
            values.append(f(*[values[k] for k in inputs]))
        return values[-1]


def check(seed: int, length: int) -> None:
    torch.manual_seed(seed)
    program = Program(seed, length)
    description: list[Any] = [(name, inputs) for name, inputs, _ in program.steps]
    try:
        model, args, sym = infer(program, (torch.randn(4, 3),))
        check_function(model, args, sym, 1e-6)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}; program {description}") from error


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    check(seed, 4 + seed % 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2400))
def test_more_random_programs(seed: int) -> None:
    check(seed, 4 + seed % 10)
