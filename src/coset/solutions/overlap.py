"""Do equivalent modes of a posterior overlap? If not, symmetrizing it changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.core.state import StateLike
from coset.solutions.as_solution import as_solution
from coset.solutions.gaussian import Gaussian
from coset.solutions.orbit_map import flat_gaussian
from coset.solutions.overlap_estimators import Bethe, Entropy, ImportanceSampling, estimator
from coset.symmetries.symmetry import Symmetry

CHUNK = 16  # states that are looked at in one go
SEPARATE = 0.1  # nats that modes may be short of separate and still count as such
TOGETHER = 0.5  # of the index, from where modes count as one


@dataclass(frozen=True, repr=False)
class Overlap(Shown):
    """The mutual information I of a random permutation and the weights it moves, and what it says.

    Args:
        information: I in nats, 0 where all images of the posterior are the same, log|G| where none overlap.
        error: its standard error from drawing finitely many states.
        lower: a bound of I, up to its standard error.
        upper: a bound of I, up to its standard error.
        log_order: log|G|.
        of_sets: for each set of units that is moved alone, its I and the log of its order.

    Example:
        >>> coset.overlap(posterior, sym, samples=4).index < 0.5
        True
    """

    information: float
    error: float
    lower: float
    upper: float
    log_order: float
    of_sets: dict[str, tuple[float, float]]

    def _shown(self) -> Table:
        sets = [(f"of {name} alone", f"{i:.4g} of {order:.4g} nats") for name, (i, order) in self.of_sets.items()]
        rows = [
            ("index", f"{self.index:.4g}, 0 for no overlap and 1 for modes that are one"),
            ("information", f"{self.information:.6g} ± {self.error:.2g} of {self.log_order:.6g} nats"),
            ("bounds", f"{self.lower:.6g} to {self.upper:.6g}"),
            *sets,
        ]
        return Table("Overlap", rows)

    @property
    def index(self) -> float:
        """1 - I / log|G|: 0 where no two equivalent modes overlap, 1 where all are one."""
        return 1 - self.information / self.log_order

    @property
    def sentence(self) -> str:
        """What symmetrization can do for this posterior."""
        short = self.log_order - self.information
        if short < SEPARATE:
            return (
                f"Equivalent modes do not overlap (index {self.index:.2g}): symmetrization adds the constant "
                f"{self.log_order:.1f} nats to the ELBO and cannot change this posterior."
            )
        if self.index < TOGETHER:
            return (
                f"Equivalent modes overlap in part (index {self.index:.2g}, {short:.2g} nats of {self.log_order:.1f}): "
                "symmetrization can change this posterior."
            )
        return (
            f"Equivalent modes are largely one (index {self.index:.2g}): many units are as good as exchangeable, and "
            "symmetrization can change this posterior."
        )


def overlap(
    q: StateLike,
    sym: Symmetry,
    entropy: Entropy = "importance",
    samples: int = 64,
    elements: int = 20,
    *,
    generator: torch.Generator | None = None,
) -> Overlap:
    """How much the images of a Gaussian under the permutations of `sym` overlap.

    The default estimator has bounds on both sides, for deep networks too: with and without the identity among the
    permutations it draws (see `overlap_estimators.ImportanceSampling`). "bethe" is bounded by the Bethe permanent's
    factor of 2^(n/2), from below by sets that do not interfere and from above by the sum over all sets; "infonce" from
    below.

    Args:
        q: a `Gaussian`.
        sym: the symmetry of its network.
        entropy: the estimator: "importance", "bethe", "infonce" (gelberg2024 Theorem 4.3), or "exact" for small groups.
        samples: states drawn from `q`.
        elements: permutations drawn for each of them.
        generator: what both come from; without one they are the same at each call.

    Returns:
        The mutual information with its bounds, for all sets of units and for each alone.

    Raises:
        CosetError: `q` is no Gaussian with independent coordinates, or the symmetry has no permutations.

    Example:
        >>> print(coset.overlap(posterior, sym, samples=4).sentence)
        Equivalent modes ...
    """
    solution = as_solution(q)
    if not isinstance(solution, Gaussian):
        raise CosetError(
            f"The overlap is known for a Gaussian with independent coordinates, not a {type(solution).__name__}."
        )
    if samples < 2:
        raise CosetError(f"The overlap needs two samples or more, not {samples}.")
    if elements < 2:
        raise CosetError(f"The overlap needs two elements or more, not {elements}.")
    v = flat_gaussian(solution, sym)
    orbit = v.orbit
    if not orbit.sets:
        raise CosetError("This symmetry has no permutations, so no equivalent modes.")
    own = torch.Generator(v.mean.device).manual_seed(0) if generator is None else generator
    estimate, bethe = estimator(entropy, orbit, elements), Bethe(orbit)
    values: list[Tensor] = []
    other: list[Tensor] = []
    sets: dict[str, list[Tensor]] = {name: [] for name in orbit.sets if bethe.units[name] is not None}
    with torch.no_grad():
        for start in range(0, samples, CHUNK):
            w = v.sample(min(CHUNK, samples - start), own)
            mean, std = v.mean.expand_as(w), v.std.expand_as(w)
            if isinstance(estimate, ImportanceSampling):
                low, high = estimate.sandwich(w, mean, std, own)
                values.append(high)
                other.append(low)
            else:
                values.append(estimate(w, mean, std, own))
            for name, sums in sets.items():
                sums.append(bethe.of_set(name, w, mean, std))
    logs, total = torch.cat(values), orbit.log_order
    of_sets = {
        name: (orbit.log_orders[name] - float(torch.cat(x).mean()), orbit.log_orders[name]) for name, x in sets.items()
    }
    information = total - float(logs.mean())
    lower, upper = information, total
    if entropy == "exact":
        upper = information
    elif entropy == "importance":
        # Tight bounds may come out in the wrong order, by less than their errors.
        lower, upper = sorted((lower, total - float(torch.cat(other).mean())))
        # The upper one may exceed what is possible by far, where no permutation that was drawn fits.
        information = (lower + min(upper, total)) / 2
    elif entropy == "bethe":
        lower -= sum(orbit.copies(name) * orbit.sets[name].size for name in bethe.independent) / 2 * math.log(2)
        if len(of_sets) == len(orbit.sets):
            upper = sum(value for value, _ in of_sets.values())
    error = float(logs.std()) / math.sqrt(samples)
    information, least, most = (min(max(x, 0.0), total) for x in (information, lower, upper))
    return Overlap(information, error, least, most, total, of_sets)
