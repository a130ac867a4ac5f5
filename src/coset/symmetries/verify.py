"""Check a symmetry by running the model, in a way that can fail.

A check is vacuous where the output does not depend on what was moved: zero-initialised heads, layer scales of
1e-6, unit norm weights, saturated activations. So the given weights are joined by generic random ones, and
each run must also *see* a change of the input and a deliberately wrong permutation. Where float32 cannot tell
right from wrong, float64 decides.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset.core import state as states
from coset.core.errors import CosetError, SymmetryError
from coset.core.show import Shown, Table
from coset.symmetries.branches import other_branches
from coset.symmetries.comparison import NOISE, TOLERANCE, any_finite, difference, generic, numbers, sizes
from coset.symmetries.examples import Example, Variant, counts, other_sizes, other_values, variants, with_optional
from coset.symmetries.fold import fold
from coset.symmetries.group import Element, MatrixGroup, Scaling
from coset.symmetries.trace import Guarded, Trains, mode, quiet, trainable_call, training, ways_to_train

if TYPE_CHECKING:
    from coset.symmetries.symmetry import Symmetry

logger = logging.getLogger(__name__)


# A wrong permutation, and another input, must move the output this many times more than a right one.
CONTRAST = 30.0
# The epsilon of a norm explains less than this much.
ROUGH = 0.1
BLAMED = 3
GAINS = (1.0, 2.0, 4.0)
SECONDS_FOR_WEAK = 2.0
# Numbers of the state times those of the input up to which many other calls are tried, and else a few.
THOROUGH = 2e8
# Sizes of one axis that a model may refuse until no more are tried.
MOST_REFUSED = 3
# Calls of one module after which it is looked whether it still is the same function.
CALLS = 4
TRAINING = "training mode"
# Sizes of groups for which an optional argument is made up.
MOST_SIZES = 6
# In training mode inputs are also tried that are so many times as large, past the bends of clamps.
LARGER = (1.0, 10.0, 1000.0)
SPECIAL = "; at random weights it holds, so the given ones are special: equal scores under a top-k or sort, say"


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """What running the model showed of its symmetry. It compares by its deviation: `sym.verify(model, x) < 1e-5`.

    Changes are relative to the largest output, `max |y' - y| / max |y|`. A check that cannot fail proves nothing, so it
    must also see a wrong permutation and another input.

    Args:
        deviation: Worst change of the output under random group elements: rounding, if the symmetry is right.
        control: Change when every tensor is permuted in its own way instead.
        sensitivity: Change when the input changes.
        conclusive: Whether the last two stand well above the first.
        dtype: The precision that decided, such as "float32".
        weights: The weights that decided: "given" (the model's) or "random".
        trials: Elements tried on each set of weights; 0 if the group is trivial.
        weak: Groups for which moving one tensor alone was not seen, among those there was time to try.
        calls: Other calls under which the output did not change either: other sizes, numbers and values.

    Example:
        >>> sym.verify(model, digits.test.inputs[:8]) < 1e-5
        True
        >>> sym.verification.conclusive
        True
    """

    deviation: float
    control: float
    sensitivity: float
    conclusive: bool
    dtype: str
    weights: str
    trials: int
    weak: tuple[str, ...] = ()
    calls: int = 0

    def __float__(self) -> float:
        return self.deviation

    def __lt__(self, other: Verification | float) -> bool:
        return self.deviation < float(other)

    def __le__(self, other: Verification | float) -> bool:
        return self.deviation <= float(other)

    def __gt__(self, other: Verification | float) -> bool:
        return self.deviation > float(other)

    def __ge__(self, other: Verification | float) -> bool:
        return self.deviation >= float(other)

    @property
    def failed(self) -> bool:
        """Whether the deviation is more than rounding in this precision."""
        return self.deviation > TOLERANCE[getattr(torch, self.dtype)]

    @property
    def note(self) -> str:
        """The outcome in one sentence."""
        if self.conclusive:
            if not self.trials:
                return "there is nothing to verify"
            faint = f", but a mistake in {', '.join(map(repr, self.weak))} would not be seen" if self.weak else ""
            return f"verified in {self.dtype} on {self.weights} weights{faint}"
        if self.control <= 0:
            return "inconclusive: nothing that was moved changes the output"
        return "inconclusive: a wrong permutation hardly changes the output"

    def _shown(self) -> Table:
        return Table(
            f"Verification: {self.note}",
            [
                ("random elements change the output by", f"{self.deviation:.1e}"),
                ("a wrong permutation", f"{self.control:.1e}"),
                ("another input", f"{self.sensitivity:.1e}"),
            ],
        )


class CounterexampleError(SymmetryError):
    """The group holds for the example, and not for another call that the model takes."""

    def __init__(
        self,
        message: str,
        variant: Variant,
        groups: tuple[str, ...],
        scalings: tuple[str, ...],
        matrices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.variant = variant
        self.groups = groups
        self.scalings = scalings
        self.matrices = matrices


class MatricesError(SymmetryError):
    """Permutations and factors hold, and matrices of these groups change the function."""

    def __init__(self, message: str, matrices: tuple[str, ...]) -> None:
        super().__init__(message)
        self.matrices = matrices


class EvaluationOnlyError(SymmetryError):
    """Factors that hold in evaluation change the function in training mode."""

    def __init__(self, message: str, scalings: tuple[str, ...]) -> None:
        super().__init__(message)
        self.scalings = scalings


def check(
    sym: Symmetry,
    model: nn.Module,
    example: Example,
    *,
    others: Iterable[Variant] = (),
    trials: int = 3,
    seed: int = 0,
) -> Verification:
    """Verify, or raise `SymmetryError` with the groups to blame.

    Args:
        sym: What is claimed.
        model: The model, with real weights.
        example: The call that was traced.
        others: Calls that must be possible too, before those that are made up from the example.
        trials: How many elements are tried on each set of weights.
        seed: Of the elements and random weights.

    Raises:
        CounterexampleError: If the function changes for another call only.
        EvaluationOnlyError: If factors that are said to hold in both modes change it in training.
        MatricesError: If matrices change it for the example, and nothing else does.
        SymmetryError: If it changes for the example.
    """
    dtype, parameters = _dtype(model), dict(model.named_parameters(remove_duplicate=False))
    if not sym.groups and not sym.matrices and not any(scaling.exact for scaling in sym.scalings):
        return Verification(0.0, 0.0, 0.0, True, _name(dtype), "given", 0)
    # Buffers may be infinite, as masks are, where the output is not.
    states.check({n: x for n, x in states.of(model).items() if n in parameters}, where="the model")
    with torch.random.fork_rng():
        runner = _Runner(sym, model, example, seed)
        reports = runner.reports(trials)
        finer: _Runner | None = None
        if not _decided(reports) and dtype != torch.float64:
            try:
                finer = _Runner(sym, *_in_float64(model, example), seed)
                runner, reports = finer, finer.reports(trials)
            except (RuntimeError, TypeError, CosetError) as error:
                logger.info("float64 cannot decide: %s", error)
        if not reports:
            states.check(states.of(model), where="the model")
            raise SymmetryError("the model's output is not finite, so its symmetry cannot be verified")
        failed = [report for report in reports if report.failed]
        rounding = runner.coarsest() if failed else None
        if rounding is not None:
            runner = _Runner(sym, runner.model, runner.example, seed, rounding)
            reports = runner.reports(trials)
            failed = [report for report in reports if report.failed]
        if failed:
            runner.refuse_matrices(failed[0])
            special = failed[0].weights == "given" and any(not r.failed and r.conclusive for r in reports)
            raise SymmetryError(runner.blame(failed[0]) + (SPECIAL if special else ""))
        best = max(reports, key=lambda report: (report.conclusive, report.control))
        best = replace(best, deviation=max(report.deviation for report in reports), weak=runner.weak_groups(best))
        rough = runner.worst_approximate()
        if rough is not None:
            raise SymmetryError(rough)
        # Weights at which a wrong move is sure to be seen, where there are any.
        random = any(report.weights == "random" and report.conclusive for report in reports)
        decisive = "random" if random else best.weights
        best = replace(best, calls=_other_calls(runner, decisive, others))
        _refuse_evaluation_only(runner, decisive)
    if not best.conclusive:
        logger.warning("the symmetry of %s could not be verified: %s", type(model).__name__, best.note)
    return best


def _refuse_evaluation_only(runner: _Runner, weights: str) -> None:
    """Raise `EvaluationOnlyError` where factors that are said to hold in both modes change the function in training."""
    broken = runner.broken_in_training(weights)
    if broken and runner.dtype != torch.float64:
        try:
            exact = runner.in_float64()
            broken = exact.broken_in_training(weights)
        except (RuntimeError, TypeError, CosetError) as error:
            logger.info("float64 cannot decide: %s", error)
    if broken:
        raise EvaluationOnlyError(
            f"the factors {', '.join(map(repr, broken))} hold in evaluation only: in training mode the model's output "
            f"changes by {max(broken.values()):.1e}; mark them evaluation_only",
            tuple(broken),
        )


def _other_calls(runner: _Runner, weights: str, others: Iterable[Variant]) -> int:
    """How many other calls the model takes; raises `CounterexampleError` where its function changes in one."""
    calls = 0
    for variant in [*others, *runner.variants()]:
        change = runner.change(weights, variant)
        calls += change is not None
        if change is not None and change > TOLERANCE[runner.precision]:
            judge = runner
            if runner.dtype != torch.float64:
                try:
                    judge = runner.in_float64()
                except (RuntimeError, TypeError, CosetError) as error:
                    logger.info("float64 cannot decide: %s", error)
                if (judge.change(weights, variant) or 0.0) <= TOLERANCE[judge.precision]:
                    continue
            raise judge.counterexample(weights, variant, change)
    return calls


def _decided(reports: list[Verification]) -> bool:
    return any(report.conclusive for report in reports) and not any(report.failed for report in reports)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(model: nn.Module) -> torch.dtype:
    for tensor in model.parameters():
        if tensor.is_floating_point():
            return tensor.dtype if tensor.dtype in TOLERANCE else torch.float32
    return torch.float32


def _in_float64(model: nn.Module, example: Example) -> tuple[nn.Module, Example]:
    return copy.deepcopy(model).double(), _double(example)


def _double(example: Example) -> Example:
    return example.replace(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x)


def confirmed(sym: Symmetry, model: nn.Module, example: Example, names: Iterable[str]) -> set[str]:
    """The groups whose matrices leave the function alone at random weights, of those with these names."""
    with torch.random.fork_rng():
        runner = _Runner(sym, model, example, seed=0)
        state = generic(runner.own, runner.generator)
        changes = runner.turning_changes(state, runner.run(state), names)
    return {name for name, change in changes.items() if change <= TOLERANCE[runner.precision]}


def _times(example: Example, factor: float) -> Example:
    return example.replace(lambda x: factor * x if isinstance(x, Tensor) and x.is_floating_point() else x)


def in_evaluation(sym: Symmetry) -> Symmetry:
    """The symmetry with all scalings that hold in evaluation taken as exact, so that random elements have them."""
    return replace(sym, scalings=tuple(replace(scaling, evaluation_only=False) for scaling in sym.scalings))


class _Precisions(Guarded):  # type: ignore[no-untyped-call]
    """Notes in which precisions ops compute."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.dtypes |= {x.dtype for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.dtype in TOLERANCE}
        return result


def _in_order(outputs: list[Tensor]) -> list[Tensor]:
    return [x.flatten().sort().values for x in outputs]


class _Runner:
    """Runs one model in one precision on several states."""

    def __init__(
        self, sym: Symmetry, model: nn.Module, example: Example, seed: int, rounding: torch.dtype | None = None
    ) -> None:
        self.claimed = sym
        self.sym = in_evaluation(sym)
        self.model = model
        self.example = example
        self.dtype = _dtype(model)
        self.precision = rounding or self.dtype
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.own = states.of(model)
        self.size = sum(x.numel() for x in self.own.values())
        self.run(self.own)

    def in_float64(self) -> _Runner:
        """The same checks in float64, up to the rounding that the model asks for itself."""
        rounding = None if self.precision == self.dtype else self.precision
        return _Runner(self.claimed, *_in_float64(self.model, self.example), self.seed, rounding)

    def coarsest(self) -> torch.dtype | None:
        """The coarsest precision that the model computes in, if it asks for one that its parameters are not in."""
        with _Precisions() as precisions:
            self.run(self.own)
        coarsest = max(precisions.dtypes, key=TOLERANCE.__getitem__, default=self.dtype)
        return coarsest if TOLERANCE[coarsest] > max(TOLERANCE[self.dtype], TOLERANCE[torch.float32]) else None

    def run(self, state: Mapping[str, Tensor], example: Example | None = None) -> list[Tensor]:
        # Models that draw random numbers in evaluation mode must draw the same ones each time.
        torch.manual_seed(self.seed)
        call = (example or self.example).copy()
        with mode(self.model, call.training):
            return numbers(states.call(self.model, state, call.args, dict(call.kwargs)))

    def run_twice(self, state: Mapping[str, Tensor], example: Example) -> list[Tensor]:
        """What later calls give, after the first has written into buffers."""
        torch.manual_seed(self.seed)
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(state[name])
        with mode(model, example.training):
            for _ in range(CALLS):
                call = example.copy()
                output = model(*call.args, **call.kwargs)
        return numbers(output)

    def _run_other(self, state: Mapping[str, Tensor], variant: Variant) -> list[Tensor]:
        example = _double(variant.example) if self.dtype == torch.float64 else variant.example
        return self.run_twice(state, example) if variant.kind == "again" else self.run(state, example)

    def variants(self) -> Iterable[Variant]:
        """Other calls, as many as the size of the model makes cheap."""
        thorough = self.size * max(1, sum(x.numel() for x in self.example.tensors)) <= THOROUGH
        call = self.example
        more = [Variant(call, "again", "a second call of the same module")] if thorough else []
        if not call.training:
            more.append(Variant(Example(call.args, call.kwargs, training=True), "flag", TRAINING))
        refused: dict[str, int] = {}
        for variant in [*more, *variants(self.model, call, thorough=thorough)]:
            if refused.get(variant.axis, 0) >= MOST_REFUSED:
                continue
            if self._takes(variant):
                yield variant
            elif variant.axis:
                refused[variant.axis] = refused.get(variant.axis, 0) + 1
        turns = other_branches(self.model, call) if thorough else {}
        yield from filter(self._takes, other_sizes(call, False, turns))
        sizes = dict.fromkeys(group.size for group in self.sym.groups if group.size > 1)
        yield from filter(self._takes, with_optional(self.model, call, list(sizes)[:MOST_SIZES]) if thorough else ())

    def _takes(self, variant: Variant) -> bool:
        try:
            # torch logs what it cannot compile, such as the bodies of loops at sizes that do not fit.
            with Guarded(), quiet():
                self._run_other(self.own, variant)
        except Exception as error:  # whatever a model raises for inputs that are not its own
            logger.debug("the model does not take %s: %s", variant.what, error)
            return False
        return True

    def change(self, weights: str, variant: Variant) -> float | None:
        """How much the output of another call changes under two elements; None where it says nothing."""
        state = self._weights(weights)
        base = self._run_other(state, variant)
        if not any_finite(base) or (variant.what == TRAINING and self._random(state, variant)):
            return None
        generator = torch.Generator().manual_seed(self.seed)
        if variant.kind == "flag" and [x.shape for x in base] != [x.shape for x in self.run(state)]:
            # It asks for other results: hidden states are in the order of their units.
            image = self.sym.act(self.sym.cycles(generator), state)
            return difference(_in_order(self._run_other(image, variant)), _in_order(base))
        if variant.what == TRAINING:
            # Factors may hold in evaluation only.
            return difference(self._run_other(self.sym.act(self.sym.cycles(generator), state), variant), base)
        elements = [self.sym.cycles(generator), self.sym.random(generator, scalings=True)]
        elements += self._turns(generator)
        if variant.kind == "value" and self.sym.conditional:
            # Values that are made up have equal scores, at which these groups do not hold.
            elements = [self._unconditional(element) for element in elements]
        images = (self.image(element, state) for element in elements)
        least = self._least(state, base)
        return max(difference(self._run_other(image, variant), base, least) for image in images)

    def _least(self, state: Mapping[str, Tensor], base: list[Tensor]) -> list[float] | None:
        """Sizes of outputs below which their changes are rounding of what the example gives.

        Where equal rows are subtracted, say, all that another call gives may be rounding.
        """
        usual = sizes(self.run(state))
        share = NOISE[self.precision] / TOLERANCE[self.precision]
        return [share * size for size in usual] if len(usual) == len(base) else None

    def _random(self, state: Mapping[str, Tensor], variant: Variant) -> bool:
        """Whether chance plays a part in a call, so that it changes with the order of units."""
        seed, base = self.seed, self._run_other(state, variant)
        try:
            self.seed = seed + 1
            return difference(self._run_other(state, variant), base) > NOISE[self.precision]
        finally:
            self.seed = seed

    def broken_in_training(self, weights: str) -> dict[str, float]:
        """The scalings said to hold in both modes that change the output in training -> by how much."""
        claimed = [scaling for scaling in self.claimed.scalings if scaling.in_both_modes]
        state = self._weights(weights)
        broken: dict[str, float] = {}
        for trains in ways_to_train(self.model) if claimed else ():

            def run(state: Mapping[str, Tensor], example: Example, trains: Trains = trains) -> list[Tensor]:
                torch.manual_seed(self.seed)
                call = example.copy()
                with training(self.model, trains):
                    return numbers(states.call(self.model, state, call.args, dict(call.kwargs)))

            call = trainable_call(run, state, self.example)
            base = run(state, call) if call is not None else []
            if call is None or not base or difference(run(state, call), base) > NOISE[self.precision]:
                continue
            for each in (_times(call, factor) for factor in LARGER):
                base = run(state, each)
                # A sign that is left as it is would show nothing, so those of a whole tensor are tried one by one.
                alone = [s for s in claimed if s.kind == "sign" and s.size * s.copies == 1]
                together = [s for s in claimed if s not in alone]
                if not any_finite(base):
                    continue
                if together:
                    element = self._factors(together[0])
                    for scaling in together[1:]:
                        element = element @ self._factors(scaling)
                    if difference(run(self.sym.act(element, state), each), base) > TOLERANCE[self.precision]:
                        alone += together
                for scaling in alone:
                    change = difference(run(self.sym.act(self._factors(scaling), state), each), base)
                    if change > TOLERANCE[self.precision]:
                        broken[scaling.name] = max(change, broken.get(scaling.name, 0.0))
        return broken

    def _weights(self, weights: str) -> dict[str, Tensor]:
        return self.own if weights == "given" else generic(self.own, torch.Generator().manual_seed(self.seed))

    def counterexample(self, weights: str, variant: Variant, change: float) -> CounterexampleError:
        """The groups and scalings that break the function in this call."""
        state = self._weights(weights)
        base = self._run_other(state, variant)
        least = self._least(state, base)

        def breaks(element: Element) -> bool:
            image = self._run_other(self.image(element, state), variant)
            return difference(image, base, least) > TOLERANCE[self.precision]

        groups = tuple(group.name for group in self.sym.groups if breaks(self._only({group.name})))
        claimed = [s for s in self.sym.scalings if s.exact and variant.what != TRAINING]
        scalings = tuple(s.name for s in claimed if breaks(self._factors(s)))
        turning = [group.name for group in self.sym.matrices if variant.what != TRAINING]
        matrices = tuple(name for name in turning if breaks(self._turn(name)))
        named = [*groups, *scalings, *(f"the matrices of {name}" for name in matrices)]
        return CounterexampleError(
            f"the model's output changes by {change:.1e} with {variant.what}: no symmetry there in "
            f"{', '.join(map(repr, named)) or 'all groups moved together'}",
            variant,
            groups,
            scalings,
            matrices,
        )

    def image(self, element: Element, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The image of a network, with gains of one where matrices ask for these."""
        if any(group.gains and group.name in element.matrices for group in self.sym.matrices):
            state = fold(state, self.sym)
        return self.sym.act(element, state)

    @functools.cached_property
    def turnable(self) -> frozenset[str]:
        """The groups of matrices that can act on the given weights: all, unless a gain of zero cannot be folded."""
        try:
            fold(self.own, self.sym)
        except SymmetryError as error:
            logger.info("not all gains can be folded: %s", error)
            return frozenset(group.name for group in self.sym.matrices if not group.gains)
        return frozenset(group.name for group in self.sym.matrices)

    def _turns(self, generator: torch.Generator) -> list[Element]:
        """A random element with matrices, if there are any."""
        element = self.sym.random(generator, scalings=True, matrices=True)
        matrices = {name: m for name, m in element.matrices.items() if name in self.turnable}
        return [self.sym.element(element.permutations, element.scales, matrices)] if matrices else []

    def _turn(self, name: str) -> Element:
        """Random matrices of one group."""
        matrices = self.sym.random(self.generator, matrices=True).matrices
        return self.sym.element(matrices={name: matrices[name]} if name in self.turnable else {})

    def turning_changes(
        self, state: Mapping[str, Tensor], base: list[Tensor], names: Iterable[str]
    ) -> dict[str, float]:
        """How much the output changes by matrices of each group alone."""
        return {name: difference(self.run(self.image(self._turn(name), state)), base) for name in names}

    def refuse_matrices(self, report: Verification) -> None:
        """Raise `MatricesError` if it is matrices that change the function, and nothing else."""
        state = self.own if report.weights == "given" else generic(self.own, self.generator)
        base = self.run(state)
        plain = self.sym.random(self.generator, scalings=True)
        if difference(self.run(self.sym.act(plain, state)), base) > TOLERANCE[self.precision]:
            return
        changes = self.turning_changes(state, base, [group.name for group in self.sym.matrices])
        broken = {name: change for name, change in changes.items() if change > TOLERANCE[self.precision]}
        if broken:
            listing = ", ".join(f"{name!r} (by {change:.1e})" for name, change in broken.items())
            raise MatricesError(
                f"the model's output changes by {report.deviation:.1e}: not a symmetry in the matrices of {listing}",
                tuple(broken),
            )

    def _sensitivity(self, state: Mapping[str, Tensor], base: list[Tensor], floor: float) -> float:
        """The change by other inputs, until one is seen: entries shuffled with noise, then values made up."""
        generator = torch.Generator().manual_seed(self.seed + 1)

        def change(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.numel() < 2 or x.dtype == torch.bool or x.layout is not torch.strided:
                return x
            if not x.is_floating_point() and counts(x):
                return x
            order = torch.randperm(x.numel(), generator=generator).to(x.device)
            shuffled = x.flatten()[order].reshape(x.shape)
            if not x.is_floating_point():
                return shuffled
            noise = torch.randn(x.shape, generator=generator).to(x)
            return shuffled + noise * (x.std() if x.std() > 0 else 1.0)

        most = 0.0
        made_up = [variant.example for variant in other_values(self.example)]
        for example in [self.example.replace(change), *made_up]:
            try:
                with Guarded():
                    most = max(most, difference(self.run(state, example), base))
            except Exception as error:  # whatever a model raises for inputs that are not its own
                logger.debug("the model does not take other inputs: %s", error)
            if most > floor:
                break
        return most

    def reports(self, trials: int) -> list[Verification]:
        """The given weights and generic ones; larger ones where the signal dies out on the way."""
        reports: list[Verification] = []
        weights = [("given", self.own)] + [("random", None)] * len(GAINS)
        for k, (name, state) in enumerate(weights):
            if state is None:
                state = generic(self.own, self.generator, GAINS[k - 1])
            report = self._report(name, state, trials)
            reports += [report] if report is not None else []
            if k > 0 and any(one.conclusive for one in reports):
                break
        return reports

    def weak_groups(self, report: Verification) -> tuple[str, ...]:
        """Groups whose units could be moved wrongly without being seen; as many as a few seconds allow."""
        state = self.own if report.weights == "given" else generic(self.own, self.generator)
        base = self.run(state)
        floor = CONTRAST * max(report.deviation, NOISE[self.precision])
        element = self.sym.cycles(self.generator)
        start = time.perf_counter()
        weak = []
        for group in self.sym.groups if report.conclusive else ():
            if time.perf_counter() - start > SECONDS_FOR_WEAK:
                break
            tensor = next((name for name, _ in group.members if state[name].is_floating_point()), None)
            if tensor is None or len(group.members) == 1:
                continue
            only = self.sym.element({group.name: element.permutations[group.name]})
            image = {**state, tensor: self.sym.act(only, {tensor: state[tensor]})[tensor]}
            if any(other is state[tensor] for name, other in state.items() if name != tensor):
                continue
            if difference(self.run(image), base) <= floor:
                weak.append(group.name)
        return tuple(weak)

    def _report(self, weights: str, state: dict[str, Tensor], trials: int) -> Verification | None:
        """One set of weights; None where the model's output is not finite there."""
        base = self.run(state)
        if any(output.numel() for output in base) and not any_finite(base):
            return None
        worst = 0.0
        for trial in range(trials):
            element = self.sym.cycles(self.generator) if trial == 0 else self.sym.random(self.generator, scalings=True)
            worst = max(worst, difference(self.run(self.sym.act(element, state)), base))
        for element in self._turns(self.generator):
            worst = max(worst, difference(self.run(self.image(element, state)), base))
        control = difference(self.run(self._wrong(state)), base)
        apart = self._turned_apart(state)
        if apart is not None:
            control = min(control, difference(self.run(apart), base)) if control else difference(self.run(apart), base)
        floor = CONTRAST * max(worst, NOISE[self.precision])
        sensitivity = self._sensitivity(state, base, floor)
        conclusive = math.isfinite(worst) and control > floor and sensitivity > floor
        return Verification(worst, control, sensitivity, conclusive, _name(self.precision), weights, trials)

    def _turned_apart(self, state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """A wrong rotation: of each group one axis is multiplied by a matrix of its own; None if none has two axes."""
        tied = self.sym.tied
        alone: list[MatrixGroup] = []
        for group in self.sym.matrices:
            owners = [(tied.get(m.tensor, m.tensor), m.axis) for m in group.members]
            if group.name in self.turnable and len(set(owners)) > 1:
                first = tuple(m for m, owner in zip(group.members, owners, strict=True) if owner == owners[0])
                alone.append(replace(group, members=first, gains=()))
        if not alone:
            return None
        part = replace(self.sym, matrices=tuple(alone))
        element = part.random(self.generator, matrices=True)
        return part.act(part.element(matrices=element.matrices), state)

    def _wrong(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors moved, each by an element of its own; tied tensors stay tied."""
        images: dict[int, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if id(tensor) not in images:
                element = self.sym.random(self.generator, scalings=not self.sym.groups)
                images[id(tensor)] = self.sym.act(element, {name: tensor})[name]
            out[name] = images[id(tensor)]
        return out

    def _unconditional(self, element: Element) -> Element:
        permutations = {name: p for name, p in element.permutations.items() if name not in self.sym.conditional}
        return self.sym.element(permutations, element.scales)

    def _only(self, groups: set[str]) -> Element:
        element = self.sym.cycles(self.generator)
        return self.sym.element({n: p for n, p in element.permutations.items() if n in groups})

    def blame(self, report: Verification) -> str:
        """Which groups break the function, most harmful first."""
        state = self.own if report.weights == "given" else generic(self.own, self.generator)
        base = self.run(state)
        effects: list[tuple[float, str]] = []
        for group in self.sym.groups:
            image = self.sym.act(self._only({group.name}), state)
            effects.append((difference(self.run(image), base), group.name))
        guilty = [(d, name) for d, name in sorted(effects, reverse=True) if d > TOLERANCE[self.precision]][:BLAMED]
        worst = f"the model's output changes by {report.deviation:.1e}"
        if not guilty:
            scaled = self._guilty_scaling(state, base)
            return f"{worst} {scaled or 'when all groups are moved together, though no group alone changes it'}"
        parts = []
        for deviation, name in guilty:
            members = next(group.members for group in self.sym.groups if group.name == name)
            listing = ", ".join(f"{tensor} axis {axis}" for tensor, axis in members[:4])
            parts.append(f"{name!r} (by {deviation:.1e}; {listing}{', ...' if len(members) > 4 else ''})")
        return f"{worst}: not a symmetry in group{'s' * (len(parts) > 1)} {'; '.join(parts)}"

    def _guilty_scaling(self, state: Mapping[str, Tensor], base: list[Tensor]) -> str:
        for scaling in self.sym.scalings:
            if scaling.exact:
                change = difference(self.run(self.sym.act(self._factors(scaling), state)), base)
                if change > TOLERANCE[self.precision]:
                    listing = ", ".join(f"{m.tensor} axis {m.axis}" for m in scaling.members[:4])
                    return f"under the factors {scaling.name!r} (by {change:.1e}; {listing})"
        return ""

    def _factors(self, scaling: Scaling) -> Element:
        """Factors of one scaling between 1/2 and 2, or signs."""
        lead = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
        noise = torch.rand(lead, generator=self.generator, dtype=torch.float64) * 2 - 1
        if scaling.kind == "sign":
            noise.flatten()[0] = -1.0
        factor = noise.sign() if scaling.kind == "sign" else torch.exp2(noise)
        return self.sym.element(scales={scaling.name: factor})

    def worst_approximate(self) -> str | None:
        """What is wrong with a scaling that is exact but for the epsilon of a norm, at weights of ordinary size."""
        rough = [scaling for scaling in self.sym.scalings if not scaling.exact]
        if not rough:
            return None
        state = generic(self.own, self.generator)
        base = self.run(state)
        element = self._factors(rough[0])
        for scaling in rough[1:]:
            element = element @ self._factors(scaling)
        if difference(self.run(self.sym.act(element, state)), base) < ROUGH:
            return None
        changes = [difference(self.run(self.sym.act(self._factors(scaling), state)), base) for scaling in rough]
        change, scaling = max(zip(changes, rough, strict=True), key=lambda pair: pair[0])
        if change < ROUGH:
            return None
        return f"the factors {scaling.name!r} are not even nearly a symmetry: the output changes by {change:.1e}"
