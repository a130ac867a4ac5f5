"""Align the networks of two populations pair by pair."""

from __future__ import annotations

from coset.alignment.population import align_population
from coset.checks import State
from coset.symmetries import Element, Symmetry


def align_pairs(a: State, b: State, sym: Symmetry) -> Element:
    """A batch of permutations g_k that make <a_k, g_k b_k> large, for every pair of members k of two populations.

    On the device of b. With one group, or groups that share no tensor, that is the maximum.
    """
    return align_population(b, a, sym).element.to(next(iter(b.values())).device)
