"""The evidence lower bound of a solution, and of its symmetrization."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError
from coset.core.functional import resolve
from coset.core.show import Shown, Table
from coset.core.state import distinct
from coset.data import Data, as_split
from coset.solutions.gaussian import Gaussian
from coset.solutions.likelihood import likelihood_of
from coset.solutions.overlap import Overlap, overlap
from coset.solutions.overlap_estimators import Entropy
from coset.solutions.predictive import BATCH, require_numbers, sample_outputs
from coset.solutions.solution import Solution
from coset.solutions.weighted_samples import weighted_samples
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True, repr=False)
class Elbo(Shown):
    """The evidence lower bound: log p(y | x) >= value = log_likelihood - divergence, in nats, summed over examples.

    Args:
        log_likelihood: E_q[log p(y | x, w)].
        divergence: KL(q || N(0, v)), exact.
        error: Standard error of the log-likelihood.
        examples: How many there are.
        overlap: Of the equivalent modes, if there is a symmetry.

    Example:
        >>> coset.Elbo(-10.0, 5.0, 0.1, 100, None).value
        -15.0
    """

    log_likelihood: float
    divergence: float
    error: float
    examples: int
    overlap: Overlap | None

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = [
            ("log likelihood", self.log_likelihood, f"+- {self.error:.2g}"),
            ("divergence", self.divergence),
            ("ELBO", self.value),
        ]
        if self.symmetrized is not None:
            rows.append(("symmetrized", self.symmetrized))
        return Table(f"Evidence lower bound of {self.examples:,} examples, in nats", rows)

    @property
    def value(self) -> float:
        return self.log_likelihood - self.divergence

    @property
    def symmetrized(self) -> float | None:
        """The bound of the symmetrized solution, value + I (gelberg2024 Theorem 4.1)."""
        return None if self.overlap is None else self.value + self.overlap.information


def elbo(
    q: Solution,
    model: nn.Module,
    data: Data,
    prior_variance: float = 1.0,
    samples: int = 64,
    *,
    sym: Symmetry | None = None,
    entropy: Entropy = "importance",
    elements: int = 20,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Elbo:
    """The evidence lower bound of a Gaussian under the prior N(0, v), and of its symmetrization.

    Args:
        q: A `Gaussian`.
        model: What it is a solution of.
        data: The training examples.
        prior_variance: v, for the random coordinates.
        samples: Weights drawn.
        sym: The symmetry of the model, for the bound of the symmetrization too.
        entropy: How its information is estimated, as in `coset.overlap`.
        elements: Permutations of an estimate, as in `coset.overlap`.
        batch_size: Examples that are run at once.
        generator: Of the weights; a fresh one of seed 0 when None.
        device: Where to compute; that of q when None.

    Returns:
        The bound and its parts.

    Raises:
        CosetError: If q is no `Gaussian`, or there are fewer than two samples.

    Example:
        >>> coset.elbo(posterior, model, digits.train, samples=4).examples
        1442
    """
    if not isinstance(q, Gaussian):
        raise CosetError(f"The ELBO is known for a Gaussian with independent coordinates, not a {type(q).__name__}.")
    if samples < 2:
        raise CosetError(f"The ELBO needs two samples or more, not {samples}.")
    if not 0 < prior_variance < math.inf:
        raise CosetError(f"The prior variance must be positive and finite, not {prior_variance}.")
    where = resolve(device, q.mean)
    own, split = q.to(where), as_split(data).to(where)
    likelihood, draws = likelihood_of(split.targets), weighted_samples(own, samples)
    likelihood.check_noise(own.noise)
    own_generator = torch.Generator(where).manual_seed(0) if generator is None else generator
    logs = torch.zeros(len(draws.weights), dtype=torch.float64, device=where)
    with sample_outputs(
        draws, model, split.inputs, likelihood, batch_size=batch_size, generator=own_generator, device=where
    ) as parts:
        for rows, examples, values in parts:
            if rows.start == examples.start == 0:
                likelihood.check(values[0], split.targets)
            part = likelihood.log_prob(values, split.targets[examples], own.noise)
            logs[rows] += part.double().flatten(1).sum(1)
    require_numbers(logs, model)
    # Nothing but a mean is one state, and known.
    total, error = float(logs.mean()), float(logs.std()) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    modes = None if sym is None else overlap(own, sym, entropy, samples, elements, generator=own_generator)
    return Elbo(total, float(_divergence(own, prior_variance)), error, len(split), modes)


def _divergence(q: Gaussian, v: float) -> Tensor:
    """KL(q || N(0, v)) = sum_i ((s_i^2 + m_i^2) / v - 1 - log(s_i^2 / v)) / 2 over the random coordinates."""
    total = torch.zeros((), dtype=torch.float64)
    for name in distinct(q.std):
        random = q.std[name] > 0
        m, s = (x[name][random].double() for x in (q.mean, q.std))
        kl = ((s.square() + m.square()) / v - 1 - s.square().log() + math.log(v)).sum() / 2
        total = total.to(kl.device) + kl
    return total
