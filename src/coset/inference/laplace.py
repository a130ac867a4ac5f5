"""Laplace's approximation: train by MAP, then a Gaussian with the curvature of the posterior there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError, ModelError
from coset.core.functional import evaluation_mode
from coset.inference.curvature import Curvature
from coset.inference.kfac import damped, kronecker
from coset.inference.map import MAP
from coset.solutions.covariance import require_small
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker_gaussian import KroneckerGaussian
from coset.solutions.solution import Solution
from coset.training.loop import Method, MinibatchRun, SolutionRun
from coset.training.network import Network, TrainingProblem
from coset.training.optimizers import check_choices, check_positive


@dataclass(frozen=True, repr=False)
class Laplace(Method):
    """Laplace's approximation: q = N(w, (H + I / v)^-1) around the mode w of the posterior (MacKay 1992).

    H is the generalised Gauss-Newton matrix over all training examples (see `coset.inference.curvature`): not the
    squared gradients of the empirical Fisher, and without augmentation, dropout or batch statistics. The noise of a
    regression is the one of the mode.

    Args:
        base: How the mode is found.
        hessian: "last_layer", the whole matrix for the last nn.Linear to run, all else being fixed, which gives a
            `FullGaussian`; "full", for all parameters of a small network; "diagonal", a `Gaussian`; "kron", a
            `KroneckerGaussian`: K-FAC for the weights of nn.Linear and nn.Conv2d, and the block of each vector.
        prior_variance: v, which then also decides the weight decay of `base`, 1 / (n v) for n examples; when None the
            weight decay decides, v = 1 / (n weight_decay).

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (q,) = coset.fit(model, digits.train, coset.Laplace(coset.MAP(epochs=2)))
        >>> q.names
        ('layers.1.weight', 'layers.1.bias')
    """

    base: MAP = field(default_factory=MAP)
    hessian: Literal["last_layer", "full", "diagonal", "kron"] = "last_layer"
    prior_variance: float | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "prior_variance")
        if self.prior_variance is None and self.base.weight_decay == 0:
            raise CosetError("Laplace: without weight decay there is no prior: give prior_variance.")

    @property
    def epochs(self) -> int:  # type: ignore[override]
        return self.base.epochs

    def start(self, problem: TrainingProblem) -> SolutionRun:
        n = len(problem.split)
        if self.prior_variance is None:
            return _AroundMode(problem, self.base, self.hessian, n * self.base.weight_decay)
        base = replace(self.base, weight_decay=1 / (n * self.prior_variance))
        return _AroundMode(problem, base, self.hessian, 1 / self.prior_variance)


class _AroundMode(MinibatchRun):
    """Training by MAP, with a look at the curvature when the solutions are asked for."""

    def __init__(self, problem: TrainingProblem, base: MAP, hessian: str, precision: float) -> None:
        self._hessian, self._precision = hessian, precision
        with evaluation_mode(problem.network.model):
            self._names = self._dense_names(problem)
        super().__init__(problem, base, base)

    def _dense_names(self, problem: TrainingProblem) -> list[str]:
        """The tensors whose curvature is not taken for a Kronecker product; tried on one example before training."""
        network, inputs = problem.network, problem.split.inputs
        trial = Curvature(network, problem.start[0], inputs[:1], noise=1.0)
        names = network.names
        if self._hessian == "last_layer":
            names = last_layer(network, trial.outputs)
        if self._hessian == "kron":
            factors = kronecker(trial)
            names = [name for name in names if name not in factors]
        if self._hessian in ("last_layer", "full"):
            require_small(sum(network.shapes[name].numel() for name in names))
        for _ in trial.rows(names):
            pass
        return names

    def solutions(self) -> list[Solution]:
        network, inputs = self.problem.network, self.problem.split.inputs
        with evaluation_mode(network.model):
            modes = super().solutions()
            return [self._around(m, Curvature(network, network.flatten(m.mean), inputs, m.noise)) for m in modes]

    def _around(self, mode: Solution, curvature: Curvature) -> Solution:
        if self._hessian == "diagonal":
            std = {name: (h + self._precision).rsqrt().to(mode.mean[name]) for name, h in curvature.diagonal().items()}
            return Gaussian(mode.mean, std, mode.noise)
        if self._hessian == "kron":
            factors = {name: damped(g, a, self._precision) for name, (g, a) in kronecker(curvature).items()}
            for name, block in curvature.blocks(self._names).items():
                factors[name] = self._covariance(block), block.new_ones(1, 1)
            return KroneckerGaussian(mode.mean, factors, mode.noise)
        return FullGaussian(mode.mean, self._covariance(curvature.dense(self._names)), self._names, mode.noise)

    def _covariance(self, curvature: Tensor) -> Tensor:
        """(H + I / v)^-1."""
        unit = torch.eye(len(curvature), dtype=curvature.dtype, device=curvature.device)
        return torch.cholesky_inverse(torch.linalg.cholesky(curvature + self._precision * unit))


def last_layer(network: Network, run: Callable[[], object]) -> list[str]:
    """The trained tensors of the last nn.Linear that has some and is called when the model runs."""
    names = {id(p): name for name, p in network.model.named_parameters() if p.requires_grad}
    linear = [module for module in network.model.modules() if isinstance(module, nn.Linear)]
    # Taken now, since while the model runs its parameters are other tensors.
    own: dict[nn.Module, list[str]] = {
        module: [names[id(p)] for p in module.parameters() if id(p) in names] for module in linear
    }
    last: list[str] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        last[:] = own[module] or last

    handles = [module.register_forward_hook(note) for module in linear]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if not last:
        raise ModelError(f"{type(network.model).__name__} runs no nn.Linear that is trained: use hessian='diagonal'.")
    return last
