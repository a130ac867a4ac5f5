"""How work that takes long says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Counted = Callable[[int, int], None]
"""Told how much is done, of how much: steps, or networks."""
