"""Curves of low loss between networks: found by learning, alone or together with a permutation."""

from coset.curves.connect import Connect
from coset.curves.find import find_curve
from coset.curves.pam import PAM, Alternation, alternate

__all__ = ["PAM", "Alternation", "Connect", "alternate", "find_curve"]
