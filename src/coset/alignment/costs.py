"""Costs: what "alike" means. Each turns two solutions into the objective of one alignment.

weights
    <a, g b>, whose maximum is the least |a - g b|^2 (Ainsworth et al. 2023)
wasserstein
    <m_a, g m_b> + <s_a, g s_b>, the least W2 distance of diagonal Gaussians (rossi2023 Eq. 19)
kl
    the least KL(g q_b || q_a) of diagonal Gaussians. Its terms with the permutation are, over all coordinates,
    ((g s_b)^2 + (m_a - g m_b)^2) / (2 s_a^2); the trace term counts too (errata to rossi2023, Appendix B)
"""

from __future__ import annotations

from collections.abc import Callable

from coset.alignment.precision import wide
from coset.alignment.problem import Pair
from coset.errors import CosetError
from coset.solutions import Gaussian, Solution


def weights(a: Solution, b: Solution) -> list[Pair]:
    return [Pair(a.mean, b.mean)]


def wasserstein(a: Solution, b: Solution) -> list[Pair]:
    p, q = _gaussians("wasserstein", a, b)
    return [Pair(p.mean, q.mean), Pair(p.std, q.std)]


def kl(a: Solution, b: Solution) -> list[Pair]:
    """<m_a / s_a^2, g m_b> - <1 / (2 s_a^2), g (s_b^2 + m_b^2)>, over the tensors that are random."""
    p, q = (wide(one) for one in _gaussians("kl", a, b))
    assert isinstance(p, Gaussian) and isinstance(q, Gaussian)
    random = [name for name in p.std if bool((p.std[name] > 0).any()) or bool((q.std[name] > 0).any())]
    for name in random:
        if not bool((p.std[name] > 0).all()):
            raise CosetError(f"The KL divergence is infinite: the first solution has no deviation in '{name}'.")
    precision = {name: p.std[name].pow(-2) for name in random}
    return [
        Pair({name: precision[name] * p.mean[name] for name in random}, {name: q.mean[name] for name in random}),
        Pair(
            {name: -0.5 * precision[name] for name in random},
            {name: q.std[name].square() + q.mean[name].square() for name in random},
        ),
    ]


COSTS: dict[str, Callable[[Solution, Solution], list[Pair]]] = {
    "weights": weights,
    "wasserstein": wasserstein,
    "kl": kl,
}


def natural(a: Solution, b: Solution) -> str:
    """The cost of `method="auto"`: Wasserstein for two Gaussians, weights otherwise."""
    return "wasserstein" if isinstance(a, Gaussian) and isinstance(b, Gaussian) else "weights"


def _gaussians(cost: str, a: Solution, b: Solution) -> tuple[Gaussian, Gaussian]:
    if not (isinstance(a, Gaussian) and isinstance(b, Gaussian)):
        raise CosetError(f'The method "{cost}" compares Gaussians, not {type(a).__name__} and {type(b).__name__}.')
    return a, b
