"""What generated networks are worth as draws of a posterior: importance weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.state import State
from coset.data import Data, as_split
from coset.inference.posterior import log_prior
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import scores
from coset.symmetries.group import Scaling
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.gauge import exact, slots
from coset.weightspace.manifold import Manifold
from coset.weightspace.volume import log_volume

POINTS = 512  # of the quadrature over a unit's factor
DROP = 36.0  # how far below its largest value the logarithm of the integrand is where it is cut off
REACH = 300.0  # the largest |2 p log r| that is looked at


def quotient_log_prior(x: Tensor, manifold: Manifold, sym: Symmetry, like: State, prior_std: float) -> Tensor:
    """log density [n] float64 at canonical coordinates x [n, D] of networks with weights N(0, prior_std^2).

        p(x) = int N(act(r, state(x)); 0, s^2) |d state / d (x, log r)| d log r      (see `log_volume`)

    If no weight has two factors, this is a product over units of integrals over one number l = log r,

        int exp(E l - sum_e u_e^2 exp(2 p_e l) / 2 s^2) dl,      E = sum_e p_e,

    over the entries u_e of a unit, which take the powers p_e. The exponent is concave, so the trapezoidal rule between
    the points where the integrand has vanished is exact to rounding. Where the weights out of a unit are zero and E is
    not positive, the density is infinite. The order of units counts: networks that are sorted too have exp(log |G|)
    times this density, G the permutations.

    like
        as for `Manifold.state`
    """
    require_positive(prior_std)
    names = list(manifold.chart.shapes)
    _require_apart(sym, manifold, names)
    population = manifold.state(x.double(), states.to(like, dtype=torch.float64))
    values = torch.cat([population[name].flatten(1) for name in names], 1)
    free = torch.ones_like(values[0], dtype=torch.bool)
    total = log_volume(manifold, x.double(), {}) - values.shape[1] * math.log(prior_std * math.sqrt(2 * math.pi))
    energies = (values / prior_std).square() / 2
    for scaling in exact(sym, "scaling"):
        powers, units = (found.to(x.device) for found in _powers(scaling, sym, population, names))
        free &= powers == 0
        kinds = sorted(set(powers[powers != 0].tolist()))
        sums = []
        for power in kinds:
            held = powers == power
            count = scaling.copies * scaling.size
            sums.append(energies.new_zeros(len(x), count).index_add_(1, units[held], energies[:, held]))
        total = total + _log_integral(manifold.exponents[scaling.name], kinds, torch.stack(sums)).sum(1)
    return total - energies[:, free].sum(1)


def _powers(scaling: Scaling, sym: Symmetry, like: State, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Of each entry of the tensors `names`, joined: the power that it takes of a factor, and the unit whose it is."""
    count = scaling.copies * scaling.size
    shape = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
    ones = {name: torch.ones(like[name].shape[1:], dtype=torch.float64) for name in names}

    def logs(factors: Tensor) -> Tensor:
        image = sym.act(sym.element(scales={scaling.name: factors.reshape(shape)}), ones)
        return torch.cat([image[name].flatten() for name in names]).log()

    # What factors e and 2, 3, 4, ... make of ones.
    powers = logs(torch.full((count,), math.e, dtype=torch.float64)).mul(1e9).round().div(1e9)
    mixed = logs(torch.arange(2, count + 2, dtype=torch.float64))
    return powers, (mixed / torch.where(powers == 0, 1.0, powers)).exp().round().long() - 2


def _log_integral(exponent: float, powers: Sequence[float], sums: Tensor) -> Tensor:
    """log int exp(f) dl [...] with f(l) = exponent l - sum_k sums[k] exp(2 powers[k] l), for sums [k, ...]."""

    def at(log_r: Tensor) -> Tensor:
        parts = [a * (2 * p * log_r).exp() for a, p in zip(sums, powers, strict=True)]
        return exponent * log_r - torch.stack(parts).sum(0)

    def slope(log_r: Tensor) -> Tensor:
        parts = [2 * p * a * (2 * p * log_r).exp() for a, p in zip(sums, powers, strict=True)]
        return exponent - torch.stack(parts).sum(0)

    far = torch.full_like(sums[0], REACH / max(abs(p) for p in powers) / 2)
    mode = _bisect(lambda log_r: slope(log_r) > 0, -far, far)
    least = at(mode) - DROP
    low = _bisect(lambda log_r: at(log_r) < least, -far, mode)
    high = _bisect(lambda log_r: at(log_r) > least, mode, far)
    t = torch.linspace(0, 1, POINTS, dtype=sums.dtype, device=sums.device).reshape(-1, *[1] * far.dim())
    found = at(low + t * (high - low)).logsumexp(0) + ((high - low) / (POINTS - 1)).log()
    return torch.where((at(-far) < least) & (at(far) < least), found, math.inf)


def _bisect(left: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where `left` changes from true to false."""
    for _ in range(60):
        middle = (low + high) / 2
        true = left(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return (low + high) / 2


def _require_apart(sym: Symmetry, manifold: Manifold, names: Sequence[str]) -> None:
    """Refuse what makes the integral over all factors no product over units."""
    buffers = [name for name in names if name in sym.buffers]
    if buffers:
        raise CosetError(f"The buffer '{buffers[0]}' has no prior: give a network without running statistics.")
    known = {scaling.name for scaling in exact(sym, "scaling")}
    if known != set(manifold.exponents):
        raise CosetError("This manifold keeps the factors of units, so its density is that of `log_posterior`.")
    at: dict[tuple[str, int], list[str]] = {}
    for slot in slots(sym, "scaling", names):
        for place in slot.places:
            found = at.setdefault((slot.tensor, place.block), [])
            found += slot.powers
            if len(found) > 1:
                which = " and ".join(f"'{name}'" for name in sorted(set(found)))
                raise CosetError(
                    f"The factors of {which} meet in '{slot.tensor}', so the prior of canonical networks is no product "
                    "over units: give a network with one hidden layer."
                )


def log_likelihood(population: PopulationLike, model: nn.Module, data: Data, noise: float | None = None) -> Tensor:
    """sum_i log p(y_i | x_i, w) [n] float64 of each network; `noise` is that of the targets of a regression."""
    population = states_of(population)
    split = as_split(data)
    count = split.targets.numel() if not split.targets.is_floating_point() else len(split)
    return -count * scores(population, model, split, noise).loss.to(next(iter(population.values())).device)


def log_posterior(
    population: PopulationLike,
    model: nn.Module,
    data: Data,
    prior_std: float,
    noise: float | None = None,
) -> Tensor:
    """sum_i log p(y_i | x_i, w) + log N(w; 0, prior_std^2) [n] float64, over all trainable parameters w.

    A density of weights up to a constant, the evidence. On the coordinates of canonical networks it is
    `log_likelihood` plus `coset.flow.importance.quotient_log_prior`.
    """
    require_positive(prior_std)
    population = states_of(population)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = states.untie(model, population)
    trained = [x for name, x in own.items() if name in parameters and parameters[name].requires_grad]
    if not trained:
        raise CosetError(f"{type(model).__name__} has no trainable parameters, so there is no prior.")
    weights = torch.cat([x.double().flatten(1) for x in trained], 1)
    return log_likelihood(population, model, data, noise) + log_prior(weights, prior_std**2)


def require_positive(prior_std: float) -> None:
    if not 0 < prior_std < math.inf:
        raise CosetError(f"The standard deviation of a prior must be positive, not {prior_std}.")


@dataclass(frozen=True, eq=False)
class Importance:
    """n draws x of q, weighted as draws of a target p known up to a constant Z: w = p(x) / q(x).

    log_weights
        [n] float64, self-normalised: their exponentials sum to one
    ess
        (sum w)^2 / sum w^2: how many independent draws of the target these are worth
    log_evidence, log_evidence_error
        log Z by log mean w, and its standard error by the delta method; both mean nothing where `ess` is small, as the
        weights that matter have then not been drawn
    """

    log_weights: Tensor
    ess: float
    log_evidence: float
    log_evidence_error: float

    def resample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n] numbers of draws, each as often as n times its weight, rounded up or down (systematic resampling)."""
        device = self.log_weights.device if generator is None else generator.device
        offset = torch.rand((), generator=generator, device=device, dtype=torch.float64).to(self.log_weights.device)
        places = (torch.arange(n, device=self.log_weights.device) + offset) / n
        edges = self.log_weights.exp().cumsum(0)
        return torch.searchsorted(edges, places * edges[-1], right=True).clamp(max=len(edges) - 1)


def importance(log_target: Tensor, log_q: Tensor) -> Importance:
    """Weights of n draws from their log densities [n], that of the target up to a constant.

    The relative error of mean w is sqrt(var w / n) / mean w = sqrt((n / ess - 1) / (n - 1)).
    """
    if log_target.shape != log_q.shape or log_q.dim() != 1 or not len(log_q):
        shapes = f"{tuple(log_target.shape)} and {tuple(log_q.shape)}"
        raise CosetError(f"Importance weights need two log densities of each draw, (n,), not {shapes}.")
    logs = log_target.double() - log_q.double()
    if bool((logs.isnan() | (logs == math.inf)).any()) or bool((logs == -math.inf).all()):
        raise CosetError("The log densities give weights that are NaN, infinite or all zero: leave such draws out.")
    n, total = len(logs), logs.logsumexp(0)
    weights = logs - total
    size = float((-(2 * weights).logsumexp(0)).exp())
    error = math.sqrt(max(n / size - 1, 0.0) / (n - 1)) if n > 1 else math.inf
    return Importance(weights, size, float(total) - math.log(n), error)
