"""A flow in one safetensors file: "field/NAME", "template/NAME", "condition/NAME", and JSON beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import get_args, get_type_hints

import torch
from torch import Tensor

from coset.core.checkpoint import FLOW as METADATA, LazyState, open_state, write_stream
from coset.core.contents import description, reading, tensor
from coset.core.errors import StateError
from coset.core.json_reader import JsonObject, shown
from coset.core.state import check, refuse_names
from coset.flow.conditions import Conditions
from coset.flow.coordinates import BaseDistribution, Geometry, Space, space
from coset.flow.matching import CouplingName, FlowPlan
from coset.flow.sampler import FlowSampler
from coset.flow.velocity_network import Architecture, Prediction, Standardize, VelocityNetwork
from coset.symmetries.serialization import symmetry_of_file
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
    with reading(path, "a flow"):
        record = description(text)
        plan = _plan(record.object("plan"))
        template = {name: tensor(source, f"template/{name}") for name in record.texts("template")}
        sym = symmetry_of_file(record.text("symmetry"))
        _check_template(sym, template)
        room = space(sym, check(template, where="the template"), plan.geometry, record.numbers("floors"))
        conditions = _conditions(record, plan, source)
        field = _field(source, room, plan, 0 if conditions is None else conditions.size)
        base = BaseDistribution(room, record.object("base").numbers("means"), record.object("base").numbers("stds"))
        precision = record.text("precision", ("float32", "tf32", "bfloat16"))
        networks = record.whole("networks") if "networks" in record else 0
        return plan, FlowSampler(field, base, conditions, precision, dict(record.object("about")), networks)


def _plan(record: JsonObject) -> FlowPlan:
    sizes = record.object("architecture")
    architecture = Architecture(
        sizes.text("kind", get_args(get_type_hints(Architecture)["kind"])),  # type: ignore[arg-type]
        sizes.whole("width", 1),
        sizes.whole("depth", 1),
        sizes.whole("heads", 1),
        sizes.flag("recompute"),
    )
    return FlowPlan(
        record.text("geometry", get_args(Geometry)),  # type: ignore[arg-type]
        record.text("coupling", get_args(CouplingName)),  # type: ignore[arg-type]
        architecture,
        record.text("predict", get_args(Prediction)),  # type: ignore[arg-type]
        tuple(record.texts("conditions")),
        None if record["align"] is None else record.flag("align"),
        record.whole("group", 1),
    )


def _check_template(sym: Symmetry, template: Mapping[str, Tensor]) -> None:
    """Sizes that a symmetry only claims are those of tensors before anything is as large as they say."""
    refuse_names(sym.missing(template), [], "its template")
    for name, x in template.items():
        expected = tuple(axis.size for axis in sym.axes[name]) if name in sym.axes else tuple(x.shape)
        if tuple(x.shape) != expected:
            raise StateError(
                f"Tensor {name!r} in its template has shape {tuple(x.shape)} where {expected} is expected."
            )


def _conditions(record: JsonObject, plan: FlowPlan, source: LazyState) -> Conditions | None:
    if record["conditions"] is None:
        sizes: dict[str, int] = {}
    else:
        labels = record.object("conditions")
        sizes = {name: labels.whole(name, 1) for name in labels}
    if tuple(sizes) != plan.conditions:
        raise StateError(f"its plan has the conditions {shown(list(plan.conditions))}, and it has {shown([*sizes])}.")
    if not sizes:
        return None
    numbers = check({part: tensor(source, f"condition/{part}") for part in ("mean", "std")}, where="its conditions")
    for part, x in numbers.items():
        if x.dtype != torch.float32 or tuple(x.shape) != (sum(sizes.values()),):
            raise StateError(f"the {part} of its conditions is {x.dtype} {tuple(x.shape)}.")
    if not bool((numbers["std"] > 0).all()):
        raise StateError("the deviations of its conditions must be positive.")
    return Conditions(sizes, numbers["mean"], numbers["std"])


def _field(source: LazyState, room: Space, plan: FlowPlan, condition: int) -> VelocityNetwork:
    """The field of the file, which is built once it is known that it is no larger than its tensors."""
    wiring, layout = Wiring.of(room.sym, room.template), source.layout(source)
    stored = {name.removeprefix("field/"): one for name, one in layout.items() if name.startswith("field/")}
    sizes = plan.architecture
    largest = max((math.prod(shape) for _, shape in stored.values()), default=0)
    if sizes.depth > len(stored) or max(sizes.width, sizes.heads) > largest:
        raise StateError(f"it has no tensors of a network of width {sizes.width} and depth {sizes.depth}.")

    def build() -> VelocityNetwork:
        return VelocityNetwork(room, sizes.build(wiring, condition), Standardize(wiring), plan.predict)

    with torch.device("meta"):
        expected = build().state_dict()
    refuse_names([name for name in expected if name not in stored], [], "its field")
    for name, x in expected.items():
        if stored[name] != (x.dtype, tuple(x.shape)):
            raise StateError(f"Tensor 'field/{name}' is {stored[name]} where {(x.dtype, tuple(x.shape))} is expected.")
    field = build()
    field.load_state_dict(check({name: source[f"field/{name}"] for name in expected}, where="its field"))
    return field.requires_grad_(False)
