"""What a run is known by: its method and settings, its model, its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.resume import NO_FOLDER, RunFolder, tensor_digest


@dataclass(frozen=True, eq=False)
class RunSettings:
    """method: a dataclass of settings. data: what is learned from. more: settings that the method does not have.

    The number of replicas is no setting: more may be asked for later.
    """

    method: object
    seed: int
    model: nn.Module
    data: Iterable[Tensor]
    device: torch.device
    more: Mapping[str, Any]

    def folder(self, out: str | Path | None, strangers: Sequence[str] = ()) -> AbstractContextManager[RunFolder]:
        """The folder of the run while it lasts, refused if it belongs to another one; that of none where `out` is None.

        strangers: patterns of files that the run would take for its own.
        """
        if out is None:
            return nullcontext(NO_FOLDER)
        model = self.model
        settings = {
            "method": type(self.method).__name__,
            **asdict(self.method),  # type: ignore[call-overload]
            "seed": self.seed,
            "device": self.device.type,
            **self.more,  # before what follows from it, so that a refusal says what was asked for
            "model": type(model).__name__,
            "tensors": {name: list(x.shape) for name, x in model.state_dict().items() if isinstance(x, Tensor)},
            "data": tensor_digest(self.data),
            "layers": layers_digest(model),  # an activation has no tensor to be known by
        }
        return RunFolder.open(out, settings, strangers)


def layers_digest(model: nn.Module) -> str:
    """Sixteen characters that differ where the descriptions of models do."""
    return hashlib.sha256(repr(model).encode()).hexdigest()[:16]


def unusual_parameters(model: nn.Module) -> dict[str, Any]:
    """Parameters that are not float32, and a digest of those that are frozen, where there are some."""
    parameters = dict(model.named_parameters())
    dtypes = {name: str(p.dtype) for name, p in parameters.items() if p.dtype != torch.float32}
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
    settings: dict[str, Any] = {"dtypes": dtypes} if dtypes else {}
    return {**settings, "frozen": [*frozen, tensor_digest(frozen.values())]} if frozen else settings
