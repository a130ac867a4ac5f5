"""A flow in one safetensors file: "field/NAME", "template/NAME", "condition/NAME", and JSON beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from coset.core.checkpoint import FLOW as METADATA, open_state
from coset.core.errors import CosetError, StateError
from coset.core.shard import write_stream
from coset.flow.conditions import Conditions
from coset.flow.coordinates import BaseDistribution, space
from coset.flow.matching import FlowPlan
from coset.flow.sampler import FlowSampler
from coset.flow.velocity_network import Architecture, Standardize, VelocityNetwork
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.graph import Wiring


def write_flow(path: str | Path, plan: FlowPlan, sampler: FlowSampler) -> None:
    """Write the file, atomically."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise StateError(f"A flow is saved as safetensors, so the name {path} must end in .safetensors.")
    conditions = sampler.conditions
    tensors: dict[str, Tensor] = {f"field/{name}": x for name, x in sampler.field.state_dict().items()}
    tensors |= {f"template/{name}": x for name, x in sampler.space.template.items()}
    if conditions is not None:
        tensors |= {"condition/mean": conditions.mean, "condition/std": conditions.std}
    description = {
        "plan": asdict(plan),
        "symmetry": sampler.space.sym.to_json(),
        "base": {"means": dict(sampler.base.means), "stds": dict(sampler.base.stds)},
        "conditions": None if conditions is None else dict(conditions.sizes),
        "precision": sampler.precision,
        "networks": sampler.networks,
        "about": dict(sampler.about),
        "template": list(sampler.space.template),
        "floors": dict(sampler.space.floors),
    }
    layout = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    try:
        write_stream(path, layout, tensors.__getitem__, {METADATA: json.dumps(description)})
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_flow(path: str | Path) -> tuple[FlowPlan, FlowSampler]:
    """The plan of a flow that `write_flow` wrote, and what it learned, on the CPU."""
    source = open_state(path)
    text = source.metadata.get(METADATA)
    if text is None:
        raise StateError(f"{path} holds no flow: give a file that Flow.save wrote.")
    try:
        description = json.loads(text)
        settings = description["plan"]
        architecture = Architecture(**settings.pop("architecture"))
        plan = FlowPlan(**{**settings, "architecture": architecture, "conditions": tuple(settings["conditions"])})
        template = {name: source[f"template/{name}"] for name in description["template"]}
        room = space(Symmetry.from_json(description["symmetry"]), template, plan.geometry, description["floors"])
        conditions = None
        if description["conditions"] is not None:
            conditions = Conditions(description["conditions"], source["condition/mean"], source["condition/std"])
        wiring = Wiring.of(room.sym, template)
        network = plan.architecture.build(wiring, 0 if conditions is None else conditions.size)
        field = VelocityNetwork(room, network, Standardize(wiring), plan.predict)
        field.load_state_dict({name: source[f"field/{name}"] for name in field.state_dict()})
        base = BaseDistribution(room, description["base"]["means"], description["base"]["stds"])
        networks = description.get("networks", 0)
        return plan, FlowSampler(
            field.requires_grad_(False),
            base,
            conditions,
            description["precision"],
            dict(description["about"]),
            networks,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, CosetError) as error:
        raise StateError(
            f"{path} holds a flow that cannot be read ({error!r}): it was written by another version, or changed."
        ) from error
