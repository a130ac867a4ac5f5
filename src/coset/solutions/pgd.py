"""Projected gradient descent on inputs (PGD): small changes of them that raise the loss as much as a few steps can."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError, DataError
from coset.core.functional import evaluating, resolve
from coset.core.show import Shown, Table
from coset.core.state import StateLike, as_state
from coset.data import DataSet, Split, Standardization
from coset.solutions.likelihood import Classification, likelihood_of
from coset.solutions.predictive import BATCH, seed_from

ROUNDING = 1e-3  # how far, in raw units, inputs may lie outside their range


@dataclass(frozen=True, repr=False)
class PGD(Shown):
    """Projected gradient ascent in the L-infinity ball around an input x (Madry et al. 2018, Section 2.1):

        x_0 = P(x + u),  u ~ U[-epsilon, epsilon]^d;    x_{k+1} = P(x_k + step sign(grad loss(x_k)))

    P is the projection to |z - x| <= epsilon and low <= z <= high; without a random start u = 0. All this is in raw
    units, such as pixels in [0, 1].

    Args:
        epsilon: the radius of the ball.
        steps: how many.
        step: how far each goes.
        random_start: from a uniform point of the ball, and not from x.
        low: the least that an input may be; None is no bound.
        high: the most that an input may be; None is no bound.
        mean: the model sees (raw - mean) / std. A number for each of some equal parts of an example in its order in
            memory, as channels are, also when flattened; one for all of it; or none if inputs are raw.
        std: as many.

    Raises:
        CosetError: a setting is out of range.

    Example:
        >>> attack = coset.PGD(epsilon=0.1, steps=3, step=0.04).in_units_of(digits)
        >>> clean, robust = (coset.evaluate(a, model, digits.test, attack=how).nll for how in (None, attack))
        >>> robust > clean
        True
    """

    epsilon: float = 8 / 255
    steps: int = 10
    step: float = 2 / 255
    random_start: bool = True
    low: float | None = 0.0
    high: float | None = 1.0
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        if not 0 <= self.epsilon < math.inf:
            raise CosetError(f"PGD: epsilon must be finite and not negative, not {self.epsilon!r}.")
        if self.steps < 1:
            raise CosetError(f"PGD: steps must be positive, not {self.steps!r}.")
        if not 0 < self.step < math.inf:
            raise CosetError(f"PGD: step must be positive and finite, not {self.step!r}.")
        for name in ("low", "high"):
            bound = getattr(self, name)
            if bound is not None and not math.isfinite(bound):
                raise CosetError(f"PGD: {name} must be finite, or None for no bound, not {bound!r}.")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise CosetError(f"PGD: low must be below high, but they are {self.low!r} and {self.high!r}.")
        if len(self.mean) != len(self.std):
            raise CosetError(f"PGD: {len(self.mean)} means need as many stds, not {len(self.std)}.")
        if not all(map(math.isfinite, self.mean)) or not all(0 < std < math.inf for std in self.std):
            raise CosetError("PGD: means must be finite, and stds positive and finite.")

    def _shown(self) -> Table:
        settings = [
            f"{field.name}={value:.4g}" if isinstance(value, float) else f"{field.name}={_listing(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != ()
        ]
        return Table(f"PGD({', '.join(settings)})")

    def in_units_of(self, dataset: DataSet) -> PGD:
        """The same attack on the standardized inputs of a data set, in its raw units.

        Args:
            dataset: gives the fewest means and stds that say what its units are.
        """
        mean, std = dataset.input_scale.mean.flatten(), dataset.input_scale.std.flatten()
        both = torch.stack([mean, std])
        for parts in (k for k in range(1, len(mean) + 1) if len(mean) % k == 0):
            split = both.reshape(2, parts, -1)
            first = split[..., :1]
            if bool((split == first).all()):
                break
        return replace(self, mean=first[0].flatten().tolist(), std=first[1].flatten().tolist())

    def scale(self, example: Tensor) -> Standardization:
        """From raw units to those of an example, each of its shape; made on its device without waiting for it.

        Args:
            example: one input.
        """
        parts = len(self.mean) or 1
        mean, std = self.mean or (0.0,), self.std or (1.0,)
        each = example.numel() // parts

        def spread(values: Sequence[float]) -> Tensor:
            return torch.cat([example.new_full((each,), value) for value in values]).reshape(example.shape)

        return Standardization(spread(mean), spread(std))

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Refuse examples that cannot be attacked.

        Args:
            inputs: (n, ...).
            targets: classes (n, ...).

        Raises:
            DataError: the targets are values, the inputs whole numbers, or outside of the bounds in raw units.
        """
        if not isinstance(likelihood_of(targets), Classification):
            raise DataError("The targets are values, but attacks are on classifications: give int64 classes.")
        if not inputs.is_floating_point():
            raise DataError(f"The inputs are {inputs.dtype}, but an attack moves them: give floating ones.")
        size = inputs[0].numel()
        if self.mean and size % len(self.mean):
            raise DataError(f"{len(self.mean)} means do not divide examples of shape {tuple(inputs.shape[1:])}.")
        scale = self.scale(inputs[0])
        least, most = (float(x) for x in (scale.invert(inputs.amin(0)).min(), scale.invert(inputs.amax(0)).max()))
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if least < low - ROUNDING or most > high + ROUNDING:
            raise DataError(
                f"In raw units the inputs go from {least:.4g} to {most:.4g}, but the attack keeps them between {low} "
                f"and {high}: take mean and std from the data by PGD.in_units_of(dataset), or give other bounds."
            )

    def on(
        self,
        model: nn.Module,
        state: StateLike,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int = BATCH,
        generator: torch.Generator | None = None,
        device: str | torch.device | None = None,
    ) -> Tensor:
        """Inputs moved to raise the cross-entropy of the model at a state, in evaluation mode.

        Args:
            model: returns logits; it is not changed.
            state: a mapping of tensors by name, a module or a Dirac.
            inputs: (n, ...).
            targets: classes (n, ...).
            batch_size: inputs in a call of the model.
            generator: what the random starts come from; without one they are the same at each call.
            device: where the model runs, the state's own by default.

        Returns:
            As the inputs, where those lie.
        """
        self.check(inputs, targets)
        tensors = as_state(state)
        where = resolve(device, tensors)
        point = states.to(tensors, where)
        noise = torch.Generator(where).manual_seed(seed_from(generator))
        likelihood = Classification()
        with evaluating(model, where) as ready:

            def outputs(x: Tensor) -> Tensor:
                return likelihood.read(states.call(ready, point, (x,)), model, len(x))

            def attack(x: Tensor, y: Tensor) -> Tensor:
                return perturb(self, lambda z: -likelihood.log_prob(outputs(z[0]), y), x.unsqueeze(0), [noise])[0]

            likelihood.check(outputs(inputs[:2].to(where)), targets)
            batches = Split(inputs, targets).minibatches(batch_size, shuffle=False)
            return torch.cat([attack(x.to(where), y.to(where)).to(inputs.device) for x, y in batches])


def _listing(value: object) -> str:
    """A setting; of more than three numbers how many there are."""
    if not isinstance(value, tuple):
        return str(value)
    return f"({len(value)} numbers)" if len(value) > 3 else f"({', '.join(f'{x:.4g}' for x in value)})"


def perturb(
    attack: PGD, loss: Callable[[Tensor], Tensor], inputs: Tensor, generators: Sequence[torch.Generator]
) -> Tensor:
    """`inputs` (rows, m, ...) after the attack, which ascends the sum of `loss`; random starts by a generator a row.

    Nothing here waits for the device, so that it can be part of a captured step. Gradients are of the inputs only.
    """
    scale = attack.scale(inputs[0, 0])
    radius, step = attack.epsilon / scale.std, attack.step / scale.std
    lower, upper = inputs - radius, inputs + radius
    if attack.low is not None:
        lower = torch.maximum(lower, (attack.low - scale.mean) / scale.std)
    if attack.high is not None:
        upper = torch.minimum(upper, (attack.high - scale.mean) / scale.std)
    x = inputs
    if attack.random_start:
        noise = torch.empty_like(inputs)
        for row, generator in zip(noise, generators, strict=True):
            row.uniform_(-1, 1, generator=generator)
        x = torch.clamp(inputs + radius * noise, lower, upper)
    for _ in range(attack.steps):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(x).sum(), x)
        x = torch.clamp(x.detach() + step * gradient.sign(), lower, upper)
    return x
