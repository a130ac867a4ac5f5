"""Probe features: what the units of a network do on given inputs (Kofinas et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.alignment.activation_sites import Site, SiteKind, places, same_pass, sites, units_on, watch
from coset.core import state as states
from coset.core.functional import evaluation_mode
from coset.core.state import StateLike, as_state
from coset.symmetries.symmetry import Symmetry

KINDS: tuple[SiteKind, ...] = ("post", "other", "pre")  # the first of them that shows a set of units is used


@torch.no_grad()
def probes(model: nn.Module, state: StateLike, sym: Symmetry, inputs: Tensor) -> dict[str, Tensor]:
    """The activation of each unit on each input, for `NeuralGraph.with_probes`.

    Activations are averaged over positions, and over all places that show the units, such as those of a residual
    stream. Units that no op shows apart from others are absent. There is no gradient.

    Args:
        model: runs in evaluation mode and is not changed.
        state: a state, a module or a Dirac, whose batch is one; or the tensors of a population.
        sym: the symmetry of the model.
        inputs: [inputs, ...], one batch for the model.

    Returns:
        Set of units -> [batch, n, inputs].

    Example:
        >>> x = coset.probes(model, a, sym, digits.test.inputs[:5])
        >>> {name: tuple(values.shape) for name, values in x.items()}
        {'layers.0': (1, 16, 5)}
    """
    tensors = as_state(state)
    alone = all(x.dim() == len(sym.axes[name]) for name, x in tensors.items() if name in sym.axes)
    members = [dict(tensors)] if alone else states.unstack(tensors)
    with evaluation_mode(model):
        views = _unit_views(sym, sites(sym, model, members[0], (inputs,)))
        rows: dict[str, list[Tensor]] = {name: [] for _, name, _ in views}
        expected: list[str] | None = None
        for member in members:
            activations: dict[str, list[Tensor]] = {name: [] for name in rows}

            def see(number: int, _: SiteKind, x: Tensor, into: dict[str, list[Tensor]] = activations) -> None:
                for site, name, where in views:
                    if site.number == number and site.dim > 0 and x.shape[0] == len(inputs):
                        units = x.movedim(site.dim, -1)[..., where.to(x.device)]
                        into[name].append(units.flatten(1, -2).mean(1))

            ops = watch(model, member, (inputs,), None, see)
            expected = ops if expected is None else expected
            same_pass(model, expected, ops)
            for name, parts in activations.items():
                rows[name] += [torch.stack(parts).mean(0).T] if parts else []
    return {name: torch.stack(parts) for name, parts in rows.items() if parts}


def _unit_views(sym: Symmetry, candidates: list[Site]) -> list[tuple[Site, str, Tensor]]:
    """(site, set, [k, n] positions of its units) of each place that counts."""
    views: list[tuple[Site, str, Tensor]] = []
    pairs = [(site, name) for site in candidates for name in sorted(units_on(sym, site.axis))]
    for name in dict.fromkeys(name for _, name in pairs):
        kind = next(kind for kind in KINDS if any(site.kind == kind for site, other in pairs if other == name))
        for site, other in pairs:
            where = places(sym, site.axis, name)
            if other == name and site.kind == kind and where is not None and not sym.sets[name].over:
                views.append((site, name, where[:, 0]))
    return views
