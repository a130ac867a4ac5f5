"""Random small models against what is inferred of them, on calls that inference did not see.

    python tests/symmetries/fuzz_models.py --seeds 0:5000 --jobs 16 --out models.jsonl

Elements of the group are loaded into the model, which is called with other sizes, values and arguments, a second time,
and in training mode. With `--complete` fixed axes are searched for permutations that were missed. A seed that is wrong
is shown as a short program by `--seeds N --shrink`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import fuzz_functions  # noqa: F401  (registers its productions)
import fuzz_layers  # noqa: F401
import fuzz_ops  # noqa: F401
import fuzz_weights  # noqa: F401
import torch
from fuzz_grammar import OTHERS, Program, Spec, build, draw
from oracle import floats, image_of, permuted, randomise, rank, scaling_directions, scaling_equations
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import coset
from coset import Element, Symmetry, SymmetryError
from coset.symmetries import infer
from coset.symmetries.group import Fixed
from coset.symmetries.verify import CounterexampleError

TOLERANCE = 1e-7
ROUNDING = 1e-13
ELEMENTS = 3
IN_TRAINING = ("permutations", "factors in both modes")
CHUNK = 20
SECONDS = 60
# Beyond, the condition of what was computed leaves no digits.
LARGEST = 1e8
MOST_COMBINATIONS = 600
State = dict[str, Tensor]


@dataclass
class Result:
    """What became of one model.

    outcome
        right, refused, wrong, or none where the model has no symmetry to be wrong about
    raw
        what verification said of the rules alone: right, or wrong for the example or for another call
    """

    seed: int
    outcome: str = "right"
    detail: str = ""
    raw: str = "right"
    raw_detail: str = ""
    groups: int = 0
    scalings: int = 0
    calls: int = 0
    notes: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Call:
    """A call of the program: what is special about it, and whether values are special, so that scores may be equal."""

    name: str
    args: tuple[Any, ...]
    special: bool = False
    times: int = 1
    training: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)


def calls(program: Program, args: tuple[Any, ...]) -> Iterator[Call]:
    """The example, and others: sizes, values, numbers and flags, several in a row, training."""
    generator = torch.Generator().manual_seed(5)

    def real(change: Any) -> tuple[Any, ...]:
        return tuple(change(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)

    def sized(batch: int, length: int | None) -> tuple[Any, ...]:
        out = []
        for name, x in zip(program.names, args, strict=True):
            if isinstance(x, Tensor):
                shape = [batch, *x.shape[1:]]
                time_axis = {"signal": 2}.get(name, 2 if x.dim() == 3 and x.shape[-1] == 7 else 1)
                if length is not None and x.dim() > 1 and name in ("x", "tokens", "mask", "memory"):
                    if x.dim() == 4:
                        shape[2:] = [length, length]
                    elif x.dim() == 3 or not x.is_floating_point():
                        shape[time_axis] = length
                if x.dtype == torch.bool:
                    x = torch.rand(shape, generator=generator) > 0.4
                elif x.is_floating_point():
                    x = torch.randn(shape, generator=generator, dtype=x.dtype)
                else:
                    x = torch.randint(5, shape, generator=generator)
            out.append(x)
        return tuple(out)

    yield Call("example", args)
    yield Call("others of this size", sized(len(args[0]), None))
    for batch, length in ((1, None), (3, None), (7, None), (2, 1), (2, 2), (3, 4), (2, 6), (2, 8), (1, 11), (4, 13)):
        yield Call(f"batch {batch}, length {length}", sized(batch, length))
    base = sized(len(args[0]), None)
    tensors = [k for k, x in enumerate(base) if isinstance(x, Tensor)]
    some = torch.rand(64, generator=generator)

    def sparse(x: Tensor) -> Tensor:
        return x * (some[torch.arange(x.numel()) % 64].reshape(x.shape) > 0.5)

    def hot(x: Tensor) -> Tensor:
        return (torch.arange(x.numel()) % 3 == 0).reshape(x.shape).to(x.dtype)

    def late(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, x.shape[1] // 2 :] = 0
        return x

    for name, change in {
        "zeros": torch.zeros_like,
        "ones": torch.ones_like,
        "negatives": lambda x: -x,
        "large": lambda x: 8 * x,
        "small": lambda x: 1e-2 * x,
        "positive": torch.abs,
        "equal rows": lambda x: x[:1].expand_as(x).clone(),
        "equal places": lambda x: x[:, :1].expand_as(x).clone(),
        "whole": torch.round,
        "sparse": sparse,
        "one hot": hot,
        "late zeros": late,
    }.items():
        yield Call(name, real(change), special=name not in ("negatives", "large", "small", "positive"))
    whole = [k for k in tensors if not args[k].is_floating_point() and args[k].dtype != torch.bool]
    for token in (0, 4) if whole else ():
        yield Call(
            f"token {token}", tuple(torch.full_like(x, token) if k in whole else x for k, x in enumerate(args)), True
        )
    masks = [k for k in tensors if args[k].dtype == torch.bool]
    for value in (True, False) if masks else ():
        yield Call(
            f"mask {value}", tuple(torch.full_like(x, value) if k in masks else x for k, x in enumerate(args)), True
        )
    for name in program.numbers:
        for other in OTHERS[name]:
            yield Call(f"{name} {other}", args, numbers={name: other})
    yield Call("second call", args, times=2)
    yield Call("third call", args, times=3)
    yield Call("training", args, training=True)


def outputs(program: Program, state: Mapping[str, Tensor], call: Call) -> list[Tensor] | None:
    """What the model gives with these weights loaded; None where it does not take the call."""
    program.load_state_dict(state)
    program.train(call.training)
    try:
        with torch.no_grad():
            for _ in range(call.times):
                result = program(*[x.clone() for x in call.args], **call.numbers)
    except (RuntimeError, IndexError, ValueError, AssertionError):
        return None
    finally:
        program.eval()
    tensors = [x.double() for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
    return tensors if all(bool((x.abs() < LARGEST).all()) for x in tensors) else None


def change(a: list[Tensor] | None, b: list[Tensor]) -> float:
    """Relative to the largest entry of each result."""
    if a is None or [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    largest = max((float(y.abs().max()) for y in b if y.numel()), default=0.0)
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if y.numel()]
    changes = [float((x - y).abs().max() / y.abs().max()) for x, y in pairs if y.abs().max() > 1e-9 * largest]
    return max(changes, default=0.0)


def deviations(program: Program, args: tuple[Any, ...], sym: Symmetry, seed: int = 3) -> Iterator[tuple[str, float]]:
    """Calls with the largest change under elements of the group; those that rounding changes are left out."""
    generator = torch.Generator().manual_seed(seed)
    states = [clones(program)]
    randomise(program, seed)
    states.append(clones(program))
    elements: list[tuple[str, Element]] = []
    if sym.groups:
        elements += [("permutations", sym.random(generator)) for _ in range(ELEMENTS - 1)]
    if any(scaling.exact for scaling in sym.scalings):
        only = sym.random(generator, scalings=True)
        elements.append(("factors", sym.element({}, only.scales)))
        elements.append(("all", sym.random(generator, scalings=True)))
        lasting = {scaling.name for scaling in sym.scalings if scaling.in_both_modes}
        scales = {name: factors for name, factors in only.scales.items() if name in lasting}
        elements.append(("factors in both modes", sym.element({}, scales)))
    if sym.matrices:
        turned = sym.random(generator, matrices=True)
        elements.append(("matrices", sym.element(matrices=turned.matrices)))
    moved = [[image_of(sym, element, state) for _, element in elements] for state in states]
    safe = [
        sym.element(
            {name: p for name, p in element.permutations.items() if name not in sym.conditional},
            element.scales,
            element.matrices,
        )
        for _, element in elements
    ]
    moved_safely = [[image_of(sym, element, state) for element in safe] for state in states]
    try:
        for call in calls(program, args):
            worst, what = 0.0, ""
            for k, state in enumerate(states):
                base = outputs(program, state, call)
                if base is None or (k > 0 and call.name not in ("example", "others of this size")):
                    continue
                for (kind, _), image in zip(elements, (moved_safely if call.special else moved)[k], strict=True):
                    if call.training and kind not in IN_TRAINING:
                        continue
                    here = change(outputs(program, image, call), base)
                    if here > TOLERANCE and rounding(program, state, call, base) > TOLERANCE * 1e-2:
                        continue
                    if here > worst:
                        worst, what = here, kind
            yield f"{call.name} ({what})", worst
    finally:
        program.load_state_dict(states[0])


def rounding(program: Program, state: State, call: Call, base: list[Tensor]) -> float:
    """How much rounding alone changes what a call gives."""

    def rounded() -> State:
        return {n: x * (1 + ROUNDING * torch.randn_like(x)) if x.is_floating_point() else x for n, x in state.items()}

    return max(change(outputs(program, rounded(), call), base) for _ in range(ELEMENTS))


def clones(program: nn.Module) -> State:
    return {name: x.detach().clone() for name, x in program.state_dict().items()}


@contextlib.contextmanager
def spied(result: Result) -> Iterator[None]:
    """Notes what verification says of the first group that is claimed."""
    check = infer.check
    first = True

    def spy(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        try:
            return check(*args, **kwargs)
        except SymmetryError as error:
            if first:
                result.raw = "wrong elsewhere" if isinstance(error, CounterexampleError) else "wrong"
                result.raw_detail = str(error)
            raise
        finally:
            first = False

    with mock.patch.object(infer, "check", spy):
        yield


def examine(spec: Spec, seed: int = 0, complete: bool = False, verify: bool = True) -> Result:
    """Build, infer, and compare."""
    start = time.perf_counter()
    result = Result(seed)
    program, args = build(spec)
    result.labels = str(program).splitlines()
    if not spec.single:
        randomise(program, 0)
    try:
        with spied(result):
            if spec.single:
                program.float()
            sym = coset.symmetry(program, in_single(args) if spec.single else args, program.told, verify=verify)
    except SymmetryError as error:
        result.outcome, result.detail = "refused", str(error)[:400]
    else:
        program.double()
        result.groups, result.scalings, result.notes = len(sym.groups), len(sym.scalings), list(sym.notes)
        wrong = []
        for name, deviation in deviations(program, args, sym):
            result.calls += 1
            if deviation > TOLERANCE:
                wrong.append(f"{name}: {deviation:.1e}")
        if wrong:
            result.outcome, result.detail = "wrong", "; ".join(wrong[:6])
        elif complete:
            result.missed = missed(spec, program, args, sym)
    result.seconds = round(time.perf_counter() - start, 2)
    return result


def in_single(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)


def missed(spec: Spec, program: Program, args: tuple[Any, ...], sym: Symmetry) -> list[str]:
    """Swaps on fixed axes, in any number of tensors at once, that no result shows; factors by a null space."""
    out = []
    state = clones(program)
    few = [call for call in calls(program, args) if call.name in ("example", "others of this size")]
    bases = [outputs(program, state, call) for call in few]
    names = floats(program)
    trained = {name for name, _ in program.named_parameters()}
    slots: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        axes = sym.axes.get(name, ())
        for d, axis in enumerate(axes):
            if isinstance(axis, Fixed) and 1 < axis.size <= 4 and name in trained:
                slots.setdefault(axis.size, []).append((name, d))
    for size, places in slots.items():
        tried = 0
        for a, b in itertools.combinations(range(size), 2):
            order = list(range(size))
            order[a], order[b] = b, a
            for count in range(1, len(places) + 1):
                for chosen in itertools.combinations(places, count):
                    tried += 1
                    if tried > MOST_COMBINATIONS:
                        break
                    image = dict(state)
                    for name, d in chosen:
                        image[name] = permuted(image[name], d, order)
                    if all(torch.equal(image[name], state[name]) for name, _ in chosen):
                        continue
                    same = all(
                        base is None or change(outputs(program, image, call), base) < 1e-10
                        for call, base in zip(few, bases, strict=True)
                    )
                    if same and not any(set(one) <= set(chosen) for one in _found(out)):
                        out.append(f"swap {a} {b} of " + " ".join(f"{name}[{d}]" for name, d in chosen))
    program.load_state_dict(state)
    return [*out, *missed_factors(spec, program, sym)]


def _found(rows: list[str]) -> list[list[tuple[str, int]]]:
    return [
        [(w.partition("[")[0], int(w.partition("[")[2][:-1])) for w in row.split(" of ")[1].split()] for row in rows
    ]


def missed_factors(spec: Spec, program: Program, sym: Symmetry) -> list[str]:
    """How many directions of rescaling there are, against how many are told."""

    def model(draw_: int) -> nn.Module:
        return randomise(build(spec)[0], draw_ + 1)

    def arguments(draw_: int) -> tuple[Any, ...]:
        torch.manual_seed(draw_)
        return tuple(
            torch.randn_like(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in build(spec)[1]
        )

    if sum(x.numel() for x in floats(program).values()) > 150:
        return []
    shift = {member.tensor: member.offset for scaling in sym.scalings for member in scaling.members}
    try:
        equations = scaling_equations(model, arguments, shift)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return []
    width = equations.shape[1]
    directions = scaling_directions(program, sym, exact=False)
    dead = int((equations.abs().amax(0) < 1e-12).sum())
    free = width - rank(equations) - dead
    told = rank(directions[:, equations.abs().amax(0) >= 1e-12]) if len(directions) else 0
    return [f"factors {told} of {free}"] if told < free else []


def shrink(spec: Spec, verify: bool = True) -> tuple[Spec, Result]:
    """Productions left out one after the other while it stays wrong."""
    best = examine(spec, verify=verify)
    kind = (best.outcome, best.raw)
    again = True
    while again:
        again = False
        for k in range(len(spec.productions)):
            smaller = replace(spec, productions=spec.productions[:k] + spec.productions[k + 1 :])
            with contextlib.suppress(Exception):
                result = examine(smaller, verify=verify)
                if (result.outcome, result.raw) == kind:
                    spec, best, again = smaller, result, True
                    break
    return spec, best


def run(task: tuple[int, bool, bool]) -> Result:
    seed, complete, verify = task
    torch.set_num_threads(1)
    try:
        return examine(draw(seed), seed, complete, verify)
    except Exception:
        return Result(seed, "error", traceback.format_exc()[-1500:])


def summary(results: list[Result], seconds: float) -> str:
    outcomes = Counter(result.outcome for result in results)
    raw = Counter(result.raw for result in results)
    moving = sum(result.groups > 0 or result.scalings > 0 for result in results)
    lost = sum(bool(result.missed) for result in results)
    return (
        f"{len(results)} models ({moving} with groups or factors), right {outcomes['right']}, "
        f"refused {outcomes['refused']}, silently wrong {outcomes['wrong']}, errors {outcomes['error']}; "
        f"rules alone wrong {raw['wrong']}, wrong for other calls {raw['wrong elsewhere']}; "
        f"with something missed {lost}; {seconds:.0f} s"
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def chunk(first: int, end: int, options: Sequence[str]) -> list[Result]:
    """Seeds in a process of their own. One that ends it, or takes too long, is an error, and the rest goes on."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        while first < end:
            out = Path(folder) / f"{first}.jsonl"
            command = [sys.executable, __file__, "--seeds", f"{first}:{end}", "--out", str(out), *options]
            try:
                code = subprocess.run(command, capture_output=True, timeout=SECONDS * (end - first)).returncode
            except subprocess.TimeoutExpired:
                code = -1
            done = [Result(**json.loads(line)) for line in out.read_text().splitlines()] if out.exists() else []
            results += done
            first += len(done)
            if first < end:
                results.append(Result(first, "error", f"the process ended with {code}"))
                first += 1
    return results


def examined(first: int, end: int, jobs: int, complete: bool, verify: bool) -> Iterator[Result]:
    if jobs == 1:
        yield from (run((seed, complete, verify)) for seed in range(first, end))
        return
    options = ["--complete"] * complete + ["--raw"] * (not verify)
    with ThreadPoolExecutor(jobs) as pool:
        starts = range(first, end, CHUNK)
        for future in as_completed([pool.submit(chunk, a, min(a + CHUNK, end), options) for a in starts]):
            yield from future.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", default="0:100", help="first:end, or one seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file of one JSON object a model")
    parser.add_argument("--complete", action="store_true", help="also look for what was missed")
    parser.add_argument("--raw", action="store_true", help="without verification")
    parser.add_argument("--shrink", action="store_true", help="show wrong ones as short programs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    start, end = (int(part) for part in f"{options.seeds}:{int(options.seeds.split(':')[0]) + 1}".split(":")[:2])
    begin, results = time.perf_counter(), []
    with options.out.open("a") if options.out else contextlib.nullcontext() as file:
        for result in examined(start, end, options.jobs, options.complete, not options.raw):
            results.append(result)
            if file is not None:
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
            if result.outcome in ("wrong", "error"):
                say(f"seed {result.seed}: {result.outcome}: {result.detail}")
            if result.outcome == "wrong" and options.shrink:
                spec, smaller = shrink(draw(result.seed), not options.raw)
                say(f"{spec}\n{build(spec)[0]}\n{smaller.detail}\n{smaller.notes}")
    say(summary(results, time.perf_counter() - begin))
    return int(any(result.outcome in ("wrong", "error") for result in results))


if __name__ == "__main__":
    sys.exit(main())
