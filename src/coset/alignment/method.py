"""What a way of aligning is: `AlignMethod`, `Cost` for those that coordinate ascent maximises, and what they are given.

One file a method, and one line in `coset.alignment.methods`; CONTRIBUTING.md says how to write one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from coset.alignment.coordinate_ascent import Match, maximise
from coset.alignment.objective import InnerProduct, Objective, read
from coset.alignment.precision import as_in
from coset.core.checkpoint import LazyState
from coset.core.errors import CosetError
from coset.core.progress import Event, Progress
from coset.core.state import State
from coset.data import Data
from coset.solutions.as_solution import with_order
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.symmetries.symmetry import Symmetry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AlignmentTask:
    """Two solutions to align, and all that a method may use; see `coset.align`.

    first, second: solutions, or checkpoints that are still on disk. `means` does not load these, `a` and `b` do.
    """

    first: Solution | LazyState
    second: Solution | LazyState
    sym: Symmetry
    model: nn.Module | None = None
    data: Data | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    restarts: int = 1
    generator: torch.Generator | None = None
    greedy: bool = True
    progress: Progress | None = None

    @cached_property
    def a(self) -> Solution:
        """The solution that stays."""
        return with_order(self.first)

    @cached_property
    def b(self) -> Solution:
        """The solution that is moved."""
        return with_order(self.second)

    @property
    def means(self) -> tuple[State, State]:
        """The means of both; a checkpoint on disk stays there, and is read one tensor at a time."""
        return mean_of(self.first), mean_of(self.second)

    def means_for_model(self) -> tuple[State, State]:
        """The means of both, in the precision in which the model takes them, if there is one."""
        if self.model is None:
            return self.a.mean, self.b.mean
        return as_in(self.model, self.a).mean, as_in(self.model, self.b).mean

    def gaussians(self, method: str) -> tuple[Gaussian, Gaussian]:
        """Both solutions, refused unless they are Gaussians."""
        a, b = self.a, self.b
        if isinstance(a, Gaussian) and isinstance(b, Gaussian):
            return a, b
        raise CosetError(f'The method "{method}" compares Gaussians, not {type(a).__name__} and {type(b).__name__}.')

    def tell(self, text: str, done: int = 0, total: int | None = None, unit: str = "stage") -> None:
        """Tell the listener, if there is one."""
        if self.progress is not None:
            self.progress(Event(done, total, unit, text))


def mean_of(x: Solution | LazyState) -> State:
    """The mean state; a lazy one stays lazy."""
    return x if isinstance(x, LazyState) else x.mean


class AlignMethod(ABC):
    """A way to align two solutions: what `method` of `coset.align` is, beside the names of those in coset.

    A subclass is a frozen dataclass of its settings. Its name is what messages and the command line call it.

    Example:
        >>> isinstance(coset.Sinkhorn(steps=50), coset.AlignMethod)
        True
        >>> coset.align(a, b, sym, coset.Activations(), model, digits.train).sweeps
        0
    """

    name: ClassVar[str]

    @abstractmethod
    def match(self, task: AlignmentTask) -> Match:
        """The element that brings `task.b` near to `task.a`, never worse than the identity by its own measure.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.
        """


class Cost(AlignMethod):
    """What "alike" means, as F(g) = sum_k <a_k, g b_k> + sum_u <L_u, P_u>: coordinate ascent maximises it.

    A subclass gives `products`, `scores` or both.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Untouched(coset.Cost):
        ...     name = "untouched"
        ...     def scores(self, task):
        ...         return {group.name: torch.eye(group.size) for group in task.sym.groups}
        >>> coset.align(a, b, sym, Untouched()).objective
        16.0
    """

    symmetric: ClassVar[bool] = False
    """Whether F is the same whichever of the two is moved, as the sum over pairs of `align_many` needs."""
    turns: ClassVar[bool] = False
    """Whether units may be mixed by matrices: F is then one of vectors, as <a, g b> is."""

    def products(self, task: AlignmentTask) -> Sequence[InnerProduct]:
        """The terms <a_k, g b_k>.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.

        Returns:
            Pairs of states, all of the same tensor names; buffers and tensors that do not move are left out later.
        """
        return ()

    def scores(self, task: AlignmentTask) -> Mapping[str, Tensor]:
        """The matrices L_u by set of units.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.

        Returns:
            `[n, n]`, a's units in rows and b's in columns, larger for units more alike; for units that lie over
            others, such as those inside heads, `[copies, copies, n, n]`. A set that is absent stays where it is.
        """
        return {}

    def objective(self, task: AlignmentTask) -> Objective:
        """F for these two solutions.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.
        """
        task = replace(task, sym=self.symmetry(task))
        return Objective(task.sym, self.products(task), self.scores(task), task.device)

    def symmetry(self, task: AlignmentTask) -> Symmetry:
        """The part of the group that is searched: matrices if the cost knows them and the gains of both are one.

        Variances of independent weights do not turn, so other solutions than states and ensembles are only permuted.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.
        """
        points = all(isinstance(one, LazyState | Dirac | Ensemble) for one in (task.first, task.second))
        if not self.turns or not task.sym.matrices or not points:
            return task.sym.without_matrices()
        unfolded = {
            gain
            for state in task.means
            for gain in dict.fromkeys(gain for group in task.sym.matrices for gain in group.gains)
            if bool((read(state, gain, task.sym) != 1).any())
        }
        if unfolded:
            logger.info("gains are not one: %s; after coset.fold more could be matched", ", ".join(sorted(unfolded)))
        usable = tuple(group for group in task.sym.matrices if not unfolded & set(group.gains))
        return replace(task.sym, matrices=usable)

    def match(self, task: AlignmentTask) -> Match:
        return maximise(self.objective(task), task.restarts, task.generator, task.greedy, task.progress)
