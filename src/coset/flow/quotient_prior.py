"""The prior of canonical networks: that of weights, integrated over the factors that canonical forms remove."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coset import state as states
from coset.checks import State
from coset.errors import CosetError
from coset.flow.posterior_density import require_positive
from coset.symmetries import Scaling, Symmetry
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
