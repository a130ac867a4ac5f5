"""Check a symmetry by running the model, in a way that can fail.

A check is vacuous where the output does not depend on what was moved: zero-initialised heads, layer scales of
1e-6, unit norm weights, saturated activations. So the given weights are joined by generic random ones, and
each run must also *see* a change of the input and a deliberately wrong permutation. Where float32 cannot tell
right from wrong, float64 decides.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset import state as states
from coset.errors import CosetError, SymmetryError
from coset.symmetry.group import Element
from coset.symmetry.trace import evaluation_mode

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
NOISE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# A wrong permutation, and another input, must move the output this many times more than a right one.
CONTRAST = 30.0
BLAMED = 3
GAINS = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Verification:
    """What running the model showed; deviations are relative to the largest output.

    deviation
        worst change of the output under random group elements: rounding, if the symmetry is right
    control
        change when every tensor is permuted in its own way instead
    sensitivity
        change when the input changes
    conclusive
        whether the last two stand well above the first
    weights
        the weights that decided: "given" or "random"
    """

    deviation: float
    control: float
    sensitivity: float
    conclusive: bool
    dtype: str
    weights: str
    trials: int

    @property
    def note(self) -> str:
        if self.conclusive:
            return (
                f"verified in {self.dtype} on {self.weights} weights" if self.trials else "there is nothing to verify"
            )
        if self.control <= 0:
            return "inconclusive: nothing that was moved changes the output"
        return "inconclusive: a wrong permutation hardly changes the output"


def check(
    sym: Symmetry,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    trials: int = 3,
    seed: int = 0,
) -> Verification:
    """Verify, or raise `SymmetryError` with the groups to blame."""
    dtype = _dtype(model)
    if not sym.groups and not any(scaling.exact for scaling in sym.scalings):
        return Verification(0.0, 0.0, 0.0, True, str(dtype).removeprefix("torch."), "given", 0)
    found: list[Verification] = []
    with evaluation_mode(model):
        runs = [(model, args, dict(kwargs or {}))]
        if dtype != torch.float64:
            runs.append(())  # type: ignore[arg-type]
        for k, run in enumerate(runs):
            try:
                runner = _Runner(sym, *(run or _in_float64(model, args, kwargs)), seed=seed)
            except (RuntimeError, TypeError, CosetError):
                break
            reports = runner.reports(trials)
            failed = [report for report in reports if report.deviation > TOLERANCE[runner.dtype]]
            last = k == len(runs) - 1
            if failed and last:
                raise SymmetryError(runner.blame(failed[0]))
            found += [report for report in reports if math.isfinite(report.deviation)]
            if not failed and any(report.conclusive for report in reports):
                break
    if not found:
        raise SymmetryError("the model's output is not finite, so its symmetry cannot be verified")
    unsure = [report for report in found if report.deviation > TOLERANCE[getattr(torch, report.dtype)]]
    if unsure and len(unsure) == len(found):
        raise SymmetryError(
            f"the output changes by {unsure[-1].deviation:.1e} under the inferred group, and float64 cannot decide"
        )
    passed = [report for report in found if report not in unsure]
    best = max(passed, key=lambda report: (report.conclusive, report.control / max(report.deviation, 1e-300)))
    return replace(best, deviation=max(r.deviation for r in passed if r.dtype == best.dtype))


def _dtype(model: nn.Module) -> torch.dtype:
    for tensor in model.parameters():
        if tensor.is_floating_point():
            return tensor.dtype if tensor.dtype in TOLERANCE else torch.float32
    return torch.float32


def _in_float64(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    def double(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    return copy.deepcopy(model).double(), pytree.tree_map(double, args), pytree.tree_map(double, dict(kwargs or {}))


class _Runner:
    """Runs one model in one precision on several states."""

    def __init__(
        self, sym: Symmetry, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int
    ) -> None:
        self.sym = sym
        self.model = model
        self.args, self.kwargs = args, kwargs
        self.dtype = _dtype(model)
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.given = states.of(model)
        self.run(self.given)

    def run(self, state: Mapping[str, Tensor], other_input: bool = False) -> list[Tensor]:
        # Models that draw random numbers in evaluation mode must draw the same ones each time.
        torch.manual_seed(self.seed)
        args, kwargs = (self.args, self.kwargs) if not other_input else self._another_input()
        output = states.call(self.model, state, args, kwargs)
        floats = [t for t in pytree.tree_leaves(_plain(output)) if isinstance(t, Tensor) and t.is_floating_point()]
        return [t.detach().double() for t in floats]

    def _another_input(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.seed + 1)

        def change(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.numel() < 2 or x.dtype == torch.bool:
                return x
            order = torch.randperm(x.numel(), generator=generator).to(x.device)
            shuffled = x.flatten()[order].reshape(x.shape)
            if not x.is_floating_point():
                return shuffled
            noise = torch.randn(x.shape, generator=generator).to(x)
            return shuffled + noise * (x.std() if x.std() > 0 else 1.0)

        return pytree.tree_map(change, self.args), pytree.tree_map(change, self.kwargs)

    def reports(self, trials: int) -> list[Verification]:
        """The given weights and generic ones; larger ones where the signal dies out on the way."""
        found = [self._report("given", self.given, trials)]
        for gain in GAINS:
            found.append(self._report("random", generic(self.given, self.generator, gain), trials))
            if any(report.conclusive for report in found):
                break
        return found

    def _report(self, weights: str, state: dict[str, Tensor], trials: int) -> Verification:
        base = self.run(state)
        worst = 0.0
        for trial in range(trials):
            element = self.sym.random(self.generator, scalings=trial > 0)
            worst = max(worst, difference(self.run(self.sym.act(element, state)), base))
        control = difference(self.run(self._wrong(state)), base)
        sensitivity = difference(self.run(state, other_input=True), base)
        floor = CONTRAST * max(worst, NOISE[self.dtype])
        conclusive = math.isfinite(worst) and control > floor and sensitivity > floor
        name = str(self.dtype).removeprefix("torch.")
        return Verification(worst, control, sensitivity, conclusive, name, weights, trials)

    def _wrong(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors moved, each by an element of its own; tied tensors stay tied."""
        moved: dict[int, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if id(tensor) not in moved:
                element = self.sym.random(self.generator, scalings=not self.sym.groups)
                moved[id(tensor)] = self.sym.act(element, {name: tensor})[name]
            out[name] = moved[id(tensor)]
        return out

    def _only(self, groups: set[str]) -> Element:
        element = self.sym.random(self.generator)
        return Element(self.sym.sets, {n: p for n, p in element.permutations.items() if n in groups})

    def blame(self, report: Verification) -> str:
        """Which groups break the function, most harmful first."""
        state = self.given if report.weights == "given" else generic(self.given, self.generator)
        base = self.run(state)
        effects: list[tuple[float, str]] = []
        for group in self.sym.groups:
            moved = self.sym.act(self._only({group.name}), state)
            effects.append((difference(self.run(moved), base), group.name))
        guilty = [(d, name) for d, name in sorted(effects, reverse=True) if d > TOLERANCE[self.dtype]][:BLAMED]
        worst = f"the model's output changes by {report.deviation:.1e}"
        if not guilty:
            return f"{worst} when factors or all groups together are moved, though no group alone changes it"
        parts = []
        for deviation, name in guilty:
            members = next(group.members for group in self.sym.groups if group.name == name)
            listing = ", ".join(f"{tensor} axis {axis}" for tensor, axis in members[:4])
            parts.append(f"{name!r} (by {deviation:.1e}; {listing}{', ...' if len(members) > 4 else ''})")
        return f"{worst}: not a symmetry in group{'s' * (len(parts) > 1)} {'; '.join(parts)}"


def _plain(output: Any) -> Any:
    """Outputs that are mappings or data classes unknown to pytree become dictionaries."""
    if isinstance(output, Mapping):
        return {key: _plain(value) for key, value in output.items()}
    if isinstance(output, list | tuple):
        return [_plain(item) for item in output]
    return output


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest absolute difference relative to the largest entry; infinite where either is not finite."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape or not (x.isfinite().all() and y.isfinite().all()):
            same = x.shape == y.shape and torch.equal(x.isfinite(), y.isfinite()) and bool(y.isfinite().any())
            if not same:
                return math.inf
            x, y = x[x.isfinite()], y[y.isfinite()]
        scale = float(y.abs().max()) if y.numel() else 0.0
        if scale > 0:
            worst = max(worst, float((x - y).abs().max()) / scale)
    return worst


def generic(state: Mapping[str, Tensor], generator: torch.Generator, gain: float = 1.0) -> dict[str, Tensor]:
    """Random weights of ordinary size, ties kept: nothing is zero, one or constant.

    Matrices get N(0, gain^2 / fan_in); vectors keep their sign: positive ones (gains, variances) exp(N(0, 0.3^2)),
    others N(0, 0.3^2).
    """
    new: dict[int, Tensor] = {}
    for tensor in state.values():
        if not tensor.is_floating_point() or id(tensor) in new:
            continue
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)
        wide = [size for size in tensor.shape if size > 1]
        if len(wide) > 1:
            new[id(tensor)] = noise * (gain / math.sqrt(max(1, tensor[0].numel())))
        elif tensor.numel() and bool((tensor > 0).all()):
            new[id(tensor)] = (0.3 * noise).exp()
        else:
            new[id(tensor)] = 0.3 * noise
    return {name: new.get(id(tensor), tensor) for name, tensor in state.items()}
