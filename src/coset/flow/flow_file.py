"""A flow in one safetensors file: "field/NAME", "template/NAME", "condition/NAME", and JSON beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from coset.core.checkpoint import open_state, write_stream
from coset.core.errors import CosetError, StateError
from coset.flow.base import Base
from coset.flow.conditions import Conditions
from coset.flow.field import Architecture, Field, Standardize
from coset.flow.fitted import Fitted
from coset.flow.fitting import Plan
from coset.flow.space import space
from coset.solutions.load import FLOW as METADATA
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.graph import Wiring


def write_flow(path: str | Path, plan: Plan, fitted: Fitted) -> None:
    """Write the file, atomically."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise StateError(f"A flow is saved as safetensors, so the name {path} must end in .safetensors.")
    conditions = fitted.conditions
    tensors: dict[str, Tensor] = {f"field/{name}": x for name, x in fitted.field.state_dict().items()}
    tensors |= {f"template/{name}": x for name, x in fitted.space.template.items()}
    if conditions is not None:
        tensors |= {"condition/mean": conditions.mean, "condition/std": conditions.std}
    description = {
        "plan": asdict(plan),
        "symmetry": fitted.space.sym.to_json(),
        "base": {"means": dict(fitted.base.means), "stds": dict(fitted.base.stds)},
        "conditions": None if conditions is None else dict(conditions.sizes),
        "precision": fitted.precision,
        "about": dict(fitted.about),
        "template": list(fitted.space.template),
        "floors": dict(fitted.space.floors),
    }
    layout = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    try:
        write_stream(path, layout, tensors.__getitem__, {METADATA: json.dumps(description)})
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_flow(path: str | Path) -> tuple[Plan, Fitted]:
    """The plan of a flow that `write_flow` wrote, and what it learned, on the CPU."""
    source = open_state(path)
    text = source.metadata.get(METADATA)
    if text is None:
        raise StateError(f"{path} holds no flow: give a file that Flow.save wrote.")
    try:
        given = json.loads(text)
        known = given["plan"]
        architecture = Architecture(**known.pop("architecture"))
        plan = Plan(**{**known, "architecture": architecture, "conditions": tuple(known["conditions"])})
        template = {name: source[f"template/{name}"] for name in given["template"]}
        room = space(Symmetry.from_json(given["symmetry"]), template, plan.geometry, given["floors"])
        conditions = None
        if given["conditions"] is not None:
            conditions = Conditions(given["conditions"], source["condition/mean"], source["condition/std"])
        wiring = Wiring.of(room.sym, template)
        network = plan.architecture.build(wiring, 0 if conditions is None else conditions.size)
        field = Field(room, network, Standardize(wiring), plan.predict)
        field.load_state_dict({name: source[f"field/{name}"] for name in field.state_dict()})
        base = Base(room, given["base"]["means"], given["base"]["stds"])
        return plan, Fitted(field.requires_grad_(False), base, conditions, given["precision"], dict(given["about"]))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, CosetError) as error:
        raise StateError(
            f"{path} holds a flow that cannot be read ({error!r}): it was written by another version, or changed."
        ) from error
