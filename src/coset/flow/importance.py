"""What generated networks are worth as draws of a posterior: importance weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, as_state
from coset.data import Data, as_split
from coset.inference.posterior import log_prior
from coset.populations.population import PopulationLike, states_of
from coset.populations.scores import scores
from coset.symmetries.group import Scaling
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical_scales import exact_scalings, scaled_weights
from coset.weightspace.manifold import Manifold
from coset.weightspace.volume import log_volume

POINTS = 512  # of the quadrature over a unit's factor
DROP = 36.0  # how far below its largest value the logarithm of the integrand is where it is cut off
REACH = 300.0  # the largest |2 p log r| that is looked at


def quotient_log_prior(x: Tensor, manifold: Manifold, sym: Symmetry, like: StateLike, prior_std: float) -> Tensor:
    """The log density of canonical networks whose weights are N(0, prior_std^2).

        p(x) = int N(act(r, state(x)); 0, s^2) |d state / d (x, log r)| d log r      (see `log_volume`)

    If no weight has two factors, this is a product over units of integrals over one number l = log r,

        int exp(E l - sum_e u_e^2 exp(2 p_e l) / 2 s^2) dl,      E = sum_e p_e,

    over the entries u_e of a unit, which take the powers p_e. The exponent is concave, so the trapezoidal rule between
    the points where the integrand has vanished is exact to rounding. Where the weights out of a unit are zero and E is
    not positive, the density is infinite. The order of units counts: networks that are sorted too have exp(log |G|)
    times this density, G the permutations.

    Args:
        x: [n, D] coordinates.
        manifold: What they are coordinates on.
        sym: The symmetry of the networks.
        like: One network, whose dtypes and constants the others have, as for `Manifold.state`.
        prior_std: The standard deviation of all weights.

    Returns:
        [n] in float64.

    Raises:
        CosetError: If the factors of two units meet in one weight, as with two hidden layers.

    Example:
        >>> manifold = coset.manifold(sym, a.mean)
        >>> x = manifold.random(5, dtype=torch.float64)
        >>> coset.quotient_log_prior(x, manifold, sym, a, prior_std=1.0).shape
        torch.Size([5])
    """
    require_positive(prior_std)
    names = list(manifold.chart.shapes)
    _require_apart(sym, manifold, names)
    population = manifold.state(x.double(), states.to(as_state(like), dtype=torch.float64))
    values = torch.cat([population[name].flatten(1) for name in names], 1)
    free = torch.ones_like(values[0], dtype=torch.bool)
    total = log_volume(manifold, x.double(), {}) - values.shape[1] * math.log(prior_std * math.sqrt(2 * math.pi))
    energies = (values / prior_std).square() / 2
    for scaling in exact_scalings(sym, "scaling"):
        powers, units = (one.to(x.device) for one in _powers(scaling, sym, population, names))
        free &= powers == 0
        kinds = sorted(set(powers[powers != 0].tolist()))
        sums = []
        for power in kinds:
            here = powers == power
            count = scaling.copies * scaling.size
            sums.append(energies.new_zeros(len(x), count).index_add_(1, units[here], energies[:, here]))
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
    log_sum = at(low + t * (high - low)).logsumexp(0) + ((high - low) / (POINTS - 1)).log()
    return torch.where((at(-far) < least) & (at(far) < least), log_sum, math.inf)


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
    names_of_scalings = {scaling.name for scaling in exact_scalings(sym, "scaling")}
    if names_of_scalings != set(manifold.exponents):
        raise CosetError("This manifold keeps the factors of units, so its density is that of `log_posterior`.")
    at: dict[tuple[str, int], list[str]] = {}
    for slot in scaled_weights(sym, "scaling", names):
        for place in slot.places:
            meeting = at.setdefault((slot.tensor, place.block), [])
            meeting += slot.powers
            if len(meeting) > 1:
                which = " and ".join(f"'{name}'" for name in sorted(set(meeting)))
                raise CosetError(
                    f"The factors of {which} meet in '{slot.tensor}', so the prior of canonical networks is no product "
                    "over units: give a network with one hidden layer."
                )


def log_likelihood(population: PopulationLike, model: nn.Module, data: Data, noise: float | None = None) -> Tensor:
    """sum_i log p(y_i | x_i, w) of each network.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        model: What the networks are states of; it is not changed.
        data: Classes, or values of a regression.
        noise: The standard deviation of the targets of a regression.

    Returns:
        [n] in float64.

    Example:
        >>> bool((coset.log_likelihood(population, model, digits.test) < 0).all())
        True
    """
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
    """sum_i log p(y_i | x_i, w) + log N(w; 0, prior_std^2) of each network, over all trainable parameters w.

    A density of weights up to a constant, the evidence. On the coordinates of canonical networks it is
    `coset.log_likelihood` plus `coset.quotient_log_prior`.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        model: What the networks are states of; it is not changed.
        data: Classes, or values of a regression.
        prior_std: The standard deviation of all weights.
        noise: That of the targets of a regression.

    Returns:
        [n] in float64.

    Raises:
        CosetError: If the prior has no positive deviation, or the model nothing to train.

    Example:
        >>> coset.log_posterior(population, model, digits.test, prior_std=1.0).shape
        torch.Size([8])
    """
    require_positive(prior_std)
    population = states_of(population)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = states.untie(model, population)
    free = [x for name, x in own.items() if name in parameters and parameters[name].requires_grad]
    if not free:
        raise CosetError(f"{type(model).__name__} has no trainable parameters, so there is no prior.")
    weights = torch.cat([x.double().flatten(1) for x in free], 1)
    return log_likelihood(population, model, data, noise) + log_prior(weights, prior_std**2)


def require_positive(prior_std: float) -> None:
    if not 0 < prior_std < math.inf:
        raise CosetError(f"The standard deviation of a prior must be positive, not {prior_std}.")


@dataclass(frozen=True, eq=False, repr=False)
class ImportanceWeights(Shown):
    """n draws x of q, weighted as draws of a target p known up to a constant Z: w = p(x) / q(x).

    Args:
        log_weights: [n] float64, self-normalised: their exponentials sum to one.
        ess: (sum w)^2 / sum w^2: how many independent draws of the target these are worth.
        log_evidence: log Z by log mean w. It means nothing where `ess` is small, as the weights that matter have then
            not been drawn.
        log_evidence_error: Its standard error by the delta method; the same holds for it.

    Example:
        >>> weights = coset.importance(torch.zeros(5), torch.zeros(5))
        >>> round(weights.ess, 6)
        5.0
    """

    log_weights: Tensor
    ess: float
    log_evidence: float
    log_evidence_error: float

    def resample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Numbers of draws, each as often as n times its weight, rounded up or down (systematic resampling).

        Args:
            n: How many numbers.
            generator: Of the one random number that this takes; torch's global one when None.

        Returns:
            [n] int64.
        """
        device = self.log_weights.device if generator is None else generator.device
        offset = torch.rand((), generator=generator, device=device, dtype=torch.float64).to(self.log_weights.device)
        places = (torch.arange(n, device=self.log_weights.device) + offset) / n
        edges = self.log_weights.exp().cumsum(0)
        return torch.searchsorted(edges, places * edges[-1], right=True).clamp(max=len(edges) - 1)

    def _shown(self) -> Table:
        rows = [("log evidence", f"{self.log_evidence:.6g} +- {self.log_evidence_error:.2g}")]
        return Table(f"{len(self.log_weights):,} draws, worth {self.ess:,.1f} of the target", rows)


def importance(log_target: Tensor, log_q: Tensor) -> ImportanceWeights:
    """What draws of one density are worth as draws of another.

    The relative error of the mean weight is sqrt(var w / n) / mean w = sqrt((n / ess - 1) / (n - 1)).

    Args:
        log_target: [n] log density of the target at each draw, up to a constant.
        log_q: [n] log density of what they were drawn from, such as `Flow.sample_with_log_prob` gives.

    Returns:
        Weights, how many draws of the target they are worth, and the logarithm of the constant.

    Raises:
        CosetError: If shapes differ, or a weight is NaN or infinite.

    Example:
        >>> x = 1.5 * torch.randn(1000)
        >>> weights = coset.importance(-x.square() / 2, torch.distributions.Normal(0, 1.5).log_prob(x))
        >>> abs(weights.log_evidence - 0.919) < 0.2  # log sqrt(2 pi)
        True
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
    return ImportanceWeights(weights, size, float(total) - math.log(n), error)
