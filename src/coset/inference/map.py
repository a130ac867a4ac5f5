"""Maximum a posteriori: ordinary training, to a Dirac."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset import state as states
from coset.data import Split
from coset.errors import CosetError, DataError
from coset.inference.augment import augment
from coset.inference.method import Method, Run
from coset.inference.schedule import SCHEDULES
from coset.solutions import Dirac

RATES = {"adam": 2e-3, "sgd": 0.1}


@dataclass(frozen=True)
class MAP(Method):
    """Minimise mean_i -log p(y_i | x_i, w) + weight_decay / 2 ||w||^2 for a classifier.

    With n examples this is the mode of the posterior under the prior N(0, 1 / (n weight_decay)).

    rate: the largest learning rate, 2e-3 for adam and 0.1 for sgd when None. momentum: of sgd.
    schedule: of the learning rate, to zero (cosine), after a warm-up (onecycle), or constant. batch_size: an epoch
    leaves out the examples that do not fill a batch, other ones each time. augment: shift and mirror
    images. precision: bfloat16 runs the model, not the parameters, in 16 bits.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    epochs: int = 50
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    augment: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(MAP).items():
            value = getattr(self, name)
            if (choices := get_args(hint)) and isinstance(choices[0], str) and value not in choices:
                raise CosetError(f"MAP: {name} must be {' or '.join(choices)}, not {value!r}.")
        limits = {"rate": 0.0, "epochs": 1, "batch_size": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf and value >= least):
                raise CosetError(f"MAP: {name} must be positive and finite, not {value!r}.")
        if not (self.weight_decay >= 0 and 0 <= self.momentum < 1):
            raise CosetError(
                f"MAP: weight_decay must not be negative and momentum must be in [0, 1), not {self.weight_decay!r} and "
                f"{self.momentum!r}."
            )

    def start(self, model: nn.Module, split: Split, generator: torch.Generator) -> Run:
        if self.augment and split.inputs.ndim != 4:
            shape = tuple(split.inputs.shape)
            raise DataError(f"augment needs images (n, channels, height, width), not inputs of shape {shape}.")
        return _Training(self, model, split, generator)


class _Training(Run):
    def __init__(self, settings: MAP, model: nn.Module, split: Split, generator: torch.Generator) -> None:
        self.settings, self.model, self.split, self.generator = settings, model, split, generator
        self.batch_size = min(settings.batch_size, len(split))
        self.steps_an_epoch = len(split) // self.batch_size
        self.step = 0
        self.rate = RATES[settings.optimizer] if settings.rate is None else settings.rate
        self.device = split.inputs.device
        self.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decay, fused = self.settings.weight_decay, self.device.type == "cuda"
        if self.settings.optimizer == "adam":
            return torch.optim.Adam(trained, self.rate, weight_decay=decay, fused=fused)
        return torch.optim.SGD(trained, self.rate, self.settings.momentum, weight_decay=decay, fused=fused)

    def epoch(self) -> tuple[float, float]:
        self.model.train()
        # Summed on the device: reading a number at each step would make the CPU wait for it.
        loss_sum = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device)
        examples = 0
        for inputs, targets in self.split.minibatches(self.batch_size, self.generator, drop_last=True):
            if self.settings.augment:
                inputs = augment(inputs, self.generator)
            logits = self._descend(inputs, targets, loss_sum)
            right += (logits.argmax(-1) == targets).sum()
            examples += targets.numel()
        return float(loss_sum) / self.steps_an_epoch, float(right) / examples

    def _descend(self, inputs: Tensor, targets: Tensor, loss_sum: Tensor) -> Tensor:
        """One step; adds its loss to `loss_sum` and returns the logits before it."""
        done = self.step / (self.settings.epochs * self.steps_an_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * SCHEDULES[self.settings.schedule](done)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits: Tensor = self.model(inputs)
        logits = logits.float()
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        loss_sum += loss.detach()
        return logits.detach()

    def solution(self) -> Dirac:
        return Dirac(states.of(self.model))

    def state_dict(self) -> dict[str, Any]:
        return {"model": states.of(self.model), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
