"""Probe features: what the units of a network do on given inputs (Kofinas et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.alignment.activation_sites import Site, SiteKind, places, same_pass, sites, units_on, watch
from coset.core import state as states
from coset.core.functional import evaluation_mode
from coset.core.state import State
from coset.symmetries.symmetry import Symmetry

KINDS: tuple[SiteKind, ...] = ("post", "other", "pre")  # the first of them that shows a set of units is used


@torch.no_grad()
def probes(model: nn.Module, state: State, sym: Symmetry, inputs: Tensor) -> dict[str, Tensor]:
    """set of units -> [batch, n, inputs]: the activation of each unit on each input, for `NeuralGraph.with_probes`.

    state: a state, whose batch is one, or a population; inputs: [inputs, ...], one batch for the model. Activations
    are averaged over positions, and over all places that show the units, such as those of a residual stream. Units
    that no op shows apart from others are absent. There is no gradient.
    """
    alone = all(x.dim() == len(sym.axes[name]) for name, x in state.items() if name in sym.axes)
    members = [dict(state)] if alone else states.unstack(state)
    with evaluation_mode(model):
        found = _chosen(sym, sites(sym, model, members[0], (inputs,)))
        rows: dict[str, list[Tensor]] = {name: [] for _, name, _ in found}
        expected: list[str] | None = None
        for member in members:
            seen: dict[str, list[Tensor]] = {name: [] for name in rows}

            def see(number: int, _: SiteKind, x: Tensor, seen: dict[str, list[Tensor]] = seen) -> None:
                for site, name, where in found:
                    if site.number == number and site.dim > 0 and x.shape[0] == len(inputs):
                        units = x.movedim(site.dim, -1)[..., where.to(x.device)]
                        seen[name].append(units.flatten(1, -2).mean(1))

            ops = watch(model, member, (inputs,), None, see)
            expected = ops if expected is None else expected
            same_pass(model, expected, ops)
            for name, parts in seen.items():
                rows[name] += [torch.stack(parts).mean(0).T] if parts else []
    return {name: torch.stack(parts) for name, parts in rows.items() if parts}


def _chosen(sym: Symmetry, seen: list[Site]) -> list[tuple[Site, str, Tensor]]:
    """(site, set, [k, n] positions of its units) of each place that counts."""
    found: list[tuple[Site, str, Tensor]] = []
    pairs = [(site, name) for site in seen for name in sorted(units_on(sym, site.axis))]
    for name in dict.fromkeys(name for _, name in pairs):
        kind = next(kind for kind in KINDS if any(site.kind == kind for site, other in pairs if other == name))
        for site, other in pairs:
            where = places(sym, site.axis, name)
            if other == name and site.kind == kind and where is not None and not sym.sets[name].over:
                found.append((site, name, where[:, 0]))
    return found
