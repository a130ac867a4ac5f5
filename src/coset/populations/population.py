"""Many networks of one layout: where they are, where they began, and what is known of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.checkpoint import CODES, POPULATION as METADATA, open_state, write_stream
from coset.core.contents import description, once, reading, tensor
from coset.core.errors import StateError
from coset.core.show import Shown, Table
from coset.core.state import (
    State,
    as_state,
    check,
    distinct,
    is_coordinate,
    owners,
    refuse_layout,
    refuse_names,
    size,
    tie,
)
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.solution import Solution
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

STATE, START, LABEL = "state/", "start/", "label/"


def write_population(
    path: str | Path,
    states: dict[str, Tensor],
    starts: dict[str, Tensor] | None,
    labels: dict[str, Tensor],
    about: Mapping[str, Any],
) -> None:
    """Write the file, atomically. Tied names are each written in full, and named in the JSON."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise StateError(f"A population is saved as safetensors, so the name {path} must end in .safetensors.")
    tensors = {
        **{STATE + name: x for name, x in states.items()},
        **{START + name: x for name, x in (starts or {}).items()},
        **{LABEL + name: x for name, x in labels.items()},
    }
    for name, x in tensors.items():
        if x.dtype not in CODES or x.layout != torch.strided:
            raise StateError(f"Tensor '{name}' ({x.dtype}, {x.layout}) cannot be stored in safetensors.")
    # A file keeps neither the order of names nor which of them hold one tensor.
    description = {"owners": owners(states), "starts": starts is not None, "labels": list(labels), "about": about}
    layout = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    try:
        write_stream(path, layout, tensors.__getitem__, {METADATA: json.dumps(description)})
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_population(path: str | Path, device: str | torch.device) -> Population:
    """The population of a file that `write_population` wrote."""
    source = open_state(path)
    text = source.metadata.get(METADATA)
    if text is None:
        raise StateError(
            f"{path} holds no population: give a file that Population.save wrote, or make one of networks by "
            "Population.of."
        )
    with reading(path, "a population"):
        record = description(text)
        first, about = record.names("owners"), dict(record.object("about"))
        states = once(first, lambda name: tensor(source, STATE + name).to(device))
        starts = once(first, lambda name: tensor(source, START + name).to(device)) if record.flag("starts") else None
        labels = {name: tensor(source, LABEL + name).to(device) for name in record.texts("labels")}
        return Population(states, starts, labels, about)


# Tensors have no truth value as a whole, so the generated comparison could only raise: identity is meant.
@dataclass(frozen=True, eq=False, repr=False)
class Population(Shown):
    """n networks of one model. Tensors are not copied; names that hold one tensor object are tied.

    Args:
        states: Each tensor of the state dict, [n, *shape].
        starts: Where each network began, of the same names and shapes, or None if that is not known.
        labels: What is known of each network by name, [n] or [n, k] floating, such as "run", "loss", "accuracy".
        about: What is known of all of them, as JSON can hold it.

    Raises:
        StateError: If tensors are not finite, or do not have one size n.

    Example:
        >>> good = population[population.labels["loss"] <= population.labels["loss"].median()]
        >>> print(good)
        Population(4 networks of 1,210 weights, labels run, loss, accuracy)
    """

    states: dict[str, Tensor]
    starts: dict[str, Tensor] | None = None
    labels: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = size(check(self.states, where="the population"))
        if self.starts is not None:
            check(self.starts, like=self.states, where="the starts of the population")
        check(self.labels, where="the labels of the population")
        for name, x in self.labels.items():
            if not x.is_floating_point() or x.ndim not in (1, 2) or len(x) != n:
                layout = f"{x.dtype} {tuple(x.shape)}"
                raise StateError(f"Label '{name}' is {layout}: give floating values [{n}] or [{n}, k].")
        try:
            json.dumps(self.about, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StateError(f"What is said about a population must be plain JSON: {error}.") from error

    def __len__(self) -> int:
        """The number n of networks, which may be none."""
        return size(self.states)

    def __str__(self) -> str:
        own = [self.states[name] for name in distinct(self.states)]
        coordinates = sum(x.shape[1:].numel() for x in own if is_coordinate(x))
        labels = f", labels {', '.join(self.labels)}" if self.labels else ""
        noun = "network" if len(self) == 1 else "networks"
        return f"Population({len(self):,} {noun} of {coordinates:,} weights{labels})"

    def _shown(self) -> Table:
        n = len(self)
        rows: list[tuple[object, ...]] = [("starts", "not known" if self.starts is None else "known")]
        for name, x in self.labels.items():
            values = f"{float(x.min()):.4g} to {float(x.max()):.4g}" if x.numel() else "none"
            rows.append((f"label {name}", values if x.ndim == 1 else f"{x.shape[1]} numbers, {values}"))
        rows += [(name, f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}") for name, x in self.states.items()]
        return Table(f"{self} on {next(iter(self.states.values())).device}" if n else str(self), rows)

    def __getitem__(self, index: slice | Tensor) -> Population:
        """Some of the networks, with their starts and labels; `about` stays.

        Args:
            index: A slice, int64 places [k], or a bool mask [n].

        Returns:
            A population of views for a slice, of copies else.

        Raises:
            StateError: If it is none of these, or out of range.
        """
        if not isinstance(index, slice | Tensor) or (isinstance(index, Tensor) and index.ndim != 1):
            raise StateError("A population is indexed by a slice, or by a tensor [k] of places or a mask [n].")
        try:
            return self._map(lambda x: x[index.to(x.device) if isinstance(index, Tensor) else index])
        except IndexError as error:
            raise StateError(f"A population of {len(self)} networks cannot be indexed so: {error}.") from error

    def to(self, device: str | torch.device) -> Population:
        """The same networks on another device.

        Args:
            device: Such as "cuda".
        """
        return self._map(lambda x: x.to(device))

    @staticmethod
    def concat(parts: Sequence[Population]) -> Population:
        """All networks of several populations, on the device of the first.

        `about` is that of all parts, or, where they differ, {"parts": [of each]}.

        Args:
            parts: Populations with the same tensors and labels.

        Raises:
            StateError: If there are none, or one lacks what another has.
        """
        if not parts:
            raise StateError("A population needs at least one part.")
        first, tied = parts[0], owners(parts[0].states)
        if len(parts) == 1:
            return first
        for k, part in enumerate(parts[1:], 1):
            _refuse_other(first, part, f"part {k} of the population")

        def together(of: Callable[[Population], State], name: str) -> Tensor:
            device = of(first)[name].device
            return torch.cat([of(part)[name].to(device) for part in parts])

        same = all(part.about == first.about for part in parts)
        return Population(
            once(tied, lambda name: together(lambda part: part.states, name)),
            None if first.starts is None else once(tied, lambda name: together(lambda part: part.starts or {}, name)),
            {name: together(lambda part: part.labels, name) for name in first.labels},
            first.about if same else {"parts": [part.about for part in parts]},
        )

    @staticmethod
    def of(networks: PopulationLike) -> Population:
        """The population of whatever holds networks.

        Args:
            networks: A population, which is returned as it is; tensors [n, ...] by name; an ensemble; or a list of
                states, modules, Diracs and ensembles, such as `coset.fit` gives, whose numbers are the label "run".

        Raises:
            StateError: If there are none, or a solution is no Dirac and no ensemble.
        """
        if isinstance(networks, Population):
            return networks
        if isinstance(networks, Mapping):
            return Population(dict(networks))
        if isinstance(networks, Solution | nn.Module):
            things: list[State | nn.Module | Solution] = [networks]
        elif isinstance(networks, Sequence) and not isinstance(networks, str):
            things = list(networks)
        else:
            raise StateError(
                f"A {type(networks).__name__} is no population: give one, tensors [n, ...] by name, or a list of "
                "states, modules or solutions."
            )
        if not things:
            raise StateError("A population needs at least one solution.")
        parts = []
        for k, thing in enumerate(things):
            members = _members(thing, k)
            run = torch.full((size(members),), float(k), device=next(iter(members.values())).device)
            parts.append(Population(members, labels={"run": run}))
        return Population.concat(parts)

    def _image(self, sym: Symmetry, g: Element) -> Population:
        """`sym.act(g, self)`: each network moved, and where it began too; by its own element of a batch of as many."""
        starts = None if self.starts is None else tie(sym.act(g, self.starts), owners(self.starts))
        return replace(self, states=tie(sym.act(g, self.states), owners(self.states)), starts=starts)

    def save(self, path: str | Path) -> None:
        """Write one file, atomically; `Population.load` reads it.

        Args:
            path: Its name, which ends in `.safetensors`.

        Raises:
            StateError: If it cannot be written.
        """
        write_population(path, self.states, self.starts, self.labels, self.about)

    @staticmethod
    def load(path: str | Path, device: str | torch.device = "cpu") -> Population:
        """The population that `save` wrote.

        Args:
            path: The file.
            device: Where its tensors go.

        Raises:
            StateError: If the file is no population, half of one, or holds NaN.
        """
        return read_population(path, device)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Population:
        """`function` on every tensor, once for tied ones."""
        tied, starts = owners(self.states), self.starts
        return Population(
            once(tied, lambda name: function(self.states[name])),
            None if starts is None else once(tied, lambda name: function(starts[name])),
            {name: function(x) for name, x in self.labels.items()},
            self.about,
        )


PopulationLike = Population | State | Solution | Sequence[State | nn.Module | Solution]
"""Networks: a population, tensors [n, ...] by name, an ensemble, or a list of states, modules, Diracs and ensembles."""


def states_of(networks: PopulationLike) -> State:
    """The tensors [n, ...] of networks by name; a mapping is not looked at."""
    return networks if isinstance(networks, Mapping) else Population.of(networks).states


def _members(thing: State | nn.Module | Solution, k: int) -> dict[str, Tensor]:
    """The networks of one thing, with a leading dimension."""
    if isinstance(thing, Ensemble):
        return thing.population
    if isinstance(thing, Solution) and not isinstance(thing, Dirac):
        raise StateError(
            f"Solution {k} is a {type(thing).__name__}, and a population is made of Diracs and Ensembles: give "
            "coset.Ensemble(q.sample(n))."
        )
    state = as_state(thing, f"network {k} of the population")
    return once(owners(state), lambda name: state[name].unsqueeze(0))


def _refuse_other(first: Population, other: Population, where: str) -> None:
    """Refuse a part that has not the tensors and labels of the first, but for the number of networks."""
    if (first.starts is None) != (other.starts is None):
        raise StateError(f"The starts are known in the first part of the population or in {where}, but not in both.")
    for a, b, what in ((first.states, other.states, where), (first.labels, other.labels, f"the labels of {where}")):
        refuse_names([name for name in a if name not in b], [name for name in b if name not in a], what)
        for name, x in a.items():
            refuse_layout(name, b[name][:0], x[:0], what)
