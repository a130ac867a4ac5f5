"""Every family of transformers' model mapping, built small, called, and read out by a fixed linear map."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.model_call import ModelCall, StageError, first_floating, one_line, randomize_norm_statistics
from bench.zoo.small_config import PROFILES, small
from bench.zoo.synthetic_inputs import CallInputs, candidates

MAX_PARAMETERS = 400_000_000
READOUT = 8

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def names() -> list[str]:
    """All families of the model mapping."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    return list(MODEL_MAPPING_NAMES)


def model_class(name: str) -> Any:
    """The base model class of a family."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    classes = MODEL_MAPPING_NAMES[name]
    return getattr(transformers, classes if isinstance(classes, str) else classes[0])


def default_config(name: str) -> Any:
    """The family's config with its own defaults."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]()


class Probe(nn.Module):
    """A model, constants for its call, and a fixed linear readout of its first floating output.

    The readout keeps the output stream from being frozen only because it is the output.
    """

    def __init__(self, model: nn.Module, constants: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.constants = list(constants)
        for name, value in constants.items():
            setattr(self, f"constant_{name}", value)
        self.axis = -1
        self.readout: nn.Module = nn.Identity()

    def raw(self, **data: Tensor) -> Tensor:
        """The model's first floating output; the last hidden state where there is one."""
        constants = {name: getattr(self, f"constant_{name}") for name in self.constants}
        output = self.model(**constants, **data)
        hidden = first_floating(getattr(output, "last_hidden_state", None))
        value = hidden if hidden is not None else first_floating(output)
        if value is None:
            raise ValueError("the model returns no floating tensor")
        return value

    def fit(self, example: Tensor) -> None:
        """Make the readout for an output of this shape: channels are axis 1 of a square map, else the last."""
        square = example.ndim == 4 and example.shape[2] == example.shape[3] != example.shape[1]
        self.axis = 1 if square else -1
        generator = torch.Generator().manual_seed(7)
        width = example.shape[self.axis]
        readout = nn.Linear(width, READOUT)
        with torch.no_grad():
            readout.weight.copy_(torch.randn(READOUT, width, generator=generator) / width**0.5)
            readout.bias.zero_()
        self.readout = readout

    def forward(self, **data: Tensor) -> Tensor:
        """The readout of the model's output."""
        value: Tensor = self.readout(self.raw(**data).movedim(self.axis, -1))
        return value


def export_patches() -> AbstractContextManager[Any]:
    """transformers' own replacements of code that cannot be exported, where this version has them."""
    try:
        importlib.import_module("transformers.exporters.exporter_dynamo")
        utils = importlib.import_module("transformers.exporters.utils")
        patches: AbstractContextManager[Any] = utils.apply_patches("dynamo")
    except (ImportError, AttributeError):
        return nullcontext()
    return patches


def precomputed(model: nn.Module, inputs: CallInputs) -> CallInputs:
    """The inputs with what transformers computes outside the graph for an export (packed lengths, positions)."""
    values: dict[str, Any] = inputs.data | inputs.constants
    try:
        utils = importlib.import_module("transformers.exporters.utils")
        with torch.no_grad():
            utils.precompute_export_inputs(model, values)
    except (ImportError, AttributeError):
        return inputs
    more = {name: value for name, value in values.items() if name not in inputs.data}
    return CallInputs(inputs.label, inputs.data, more)


def construct(kind: Any, config: Any, attention: str) -> nn.Module:
    """A model with random weights in float32; experts in the form that can be exported."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"attn_implementation": attention, "dtype": torch.float32}
    size = 0
    with contextlib.suppress(Exception), torch.device("meta"):  # some cannot be built on meta
        size = sum(p.numel() for p in kind._from_config(config, **options).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"too large: {size / 1e6:.0f} million parameters")
    model: nn.Module = kind._from_config(config, **options)
    with contextlib.suppress(Exception):
        model.set_experts_implementation("batched_mm")  # type: ignore[operator]
    model = model.float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            # Unset memory; and routers of zeros, whose equal scores make top-k depend on the order of the experts.
            if not bool((parameter.abs() < 1e4).all()) or (parameter.ndim > 1 and not bool(parameter.any())):
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
        randomize_norm_statistics(model)
    return model


def called(model: nn.Module, inputs: CallInputs) -> Probe:
    """The model with a readout, after one successful call with a finite output."""
    constants = dict(inputs.constants)
    signature = inspect.signature(model.forward).parameters
    for name in ("use_cache",):
        if name in signature:
            constants[name] = False
    probe = Probe(model, constants).eval()
    with torch.no_grad():
        example = probe.raw(**inputs.data)
        if not bool(torch.isfinite(example).all()):
            raise ValueError("the output is not finite")
        probe.fit(example)
    return probe.eval()


def attempts(name: str) -> Iterator[ModelCall]:
    """Cases to trace, the most telling first; raises StageError when nothing could be called."""
    try:
        kind, base = model_class(name), default_config(name)
    except Exception as error:
        raise StageError("build", one_line(error)) from error
    failure = StageError("build", "no inputs known for this signature")
    for profile in PROFILES:
        was_called = False
        for attention in ("sdpa", "eager"):
            try:
                model = construct(kind, small(base, profile), attention)
            except Exception as error:
                refused = "attention implementation" in str(error)
                if failure.stage == "build" and profile is PROFILES[0] and not refused:
                    failure = StageError("build", one_line(error))
                continue
            kinds: set[str] = set()
            for inputs in candidates(model):
                where = inputs.label.split(":")[0]
                if where in kinds:
                    continue
                try:
                    probe = called(model, inputs)
                except Exception as error:
                    if failure.stage == "build":
                        failure = StageError("call", f"{one_line(error)} [{inputs.label}]")
                    continue
                kinds.add(where)
                was_called = True
                label = f"{profile.name} {attention} {inputs.label}"
                yield ModelCall(probe, (), inputs.data, label)
                with contextlib.suppress(Exception), export_patches():
                    probe = called(model, precomputed(model, inputs))
                yield ModelCall(probe, (), inputs.data, label + " patched", context=export_patches)
        if was_called:
            return
    raise failure
