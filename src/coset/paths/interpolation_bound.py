"""How high the loss can be between two networks, from how far apart their units act (tatro2020 Theorem 3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from coset.core import state as states
from coset.core.errors import DataError, ModelError
from coset.core.show import Shown, Table
from coset.core.state import StateLike, check
from coset.data import Data, Split, as_split
from coset.paths.barrier import barrier
from coset.paths.geodesic import geodesic
from coset.solutions.as_solution import with_order
from coset.solutions.dirac import Dirac
from coset.solutions.predictive import BATCH
from coset.zoo.mlp import MLP

# |p - e_y|^2 = (1 - p_y)^2 + sum_{k != y} p_k^2 <= 2 (1 - p_y)^2: the gradient of the cross-entropy in the logits.
LIPSCHITZ = math.sqrt(2)
# Maps s with |s(x) - s(y)| <= |x - y|.
NON_EXPANSIVE = (
    nn.Flatten,
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.Tanh,
    nn.Hardtanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
)


@dataclass(frozen=True, repr=False)
class InterpolationBound(Shown):
    """The loss on the line between two networks, and what it cannot exceed, both in nats per example.

    Args:
        t: Equally spaced from 0 to 1.
        bound: What the loss at each t cannot exceed; the loss itself at both ends.
        loss: At each t.

    Example:
        >>> result = coset.interpolation_bound(model, a, b, digits.test, points=5)
        >>> result.mean_loss < result.mean_bound
        True
    """

    t: tuple[float, ...]
    bound: tuple[float, ...]
    loss: tuple[float, ...]

    @property
    def mean_bound(self) -> float:
        """The integral of the bound over t (tatro2020 Eq. 30), by the trapezoidal rule."""
        return _integral(self.bound)

    @property
    def mean_loss(self) -> float:
        """The integral of the loss over t, by the trapezoidal rule."""
        return _integral(self.loss)

    def _shown(self) -> Table:
        rows = [
            ("mean over t", self.mean_loss, self.mean_bound),
            ("highest", max(self.loss), max(self.bound)),
            ("at the ends", f"{self.loss[0]:.6g}, {self.loss[-1]:.6g}", "the same"),
        ]
        return Table(f"InterpolationBound of {len(self.t)} points, nats", [("", "loss", "bound"), *rows])


def interpolation_bound(
    model: nn.Module,
    a: StateLike,
    b: StateLike,
    data: Data,
    points: int = 25,
    *,
    batch_size: int = BATCH,
) -> InterpolationBound:
    """Bound the cross-entropy at (1-t) a + t b by what can be measured at a and b alone (tatro2020 Appendix C.1).

    With f_i the outputs of linear layer i, W_i its weight and s an activation function with |s(x) - s(y)| <= |x - y|,

        e_i(t) = f_i(t) - (1-t) f_i(0) - t f_i(1)
        |e_i(t)| <= (1-t) |W_i(0)| |f_{i-1}(t) - f_{i-1}(0)| + t |W_i(1)| |f_{i-1}(t) - f_{i-1}(1)|
        |f_i(t) - f_i(0)| <= |e_i(t)| + t |f_i(1) - f_i(0)|,    |f_i(t) - f_i(1)| <= |e_i(t)| + (1-t) |f_i(1) - f_i(0)|

    (Eqs. 21 and 22), with spectral norms of weights, root mean squares over examples of all else, and e_1 = 0. The
    cross-entropy is convex in the logits and changes by sqrt 2 times their move at most, so that with L layers

        loss(t) <= (1-t) loss(0) + t loss(1) + sqrt 2 |e_L(t)|.

    The paper bounds the loss by its Lipschitz constant alone, which needs ends that fit every target. Biases cancel in
    e_i. Permuting the units of b changes only |f_i(1) - f_i(0)|, and a permutation that makes it least for every layer,
    `align(a, b, sym, Activations("pre", "l2"), model, data)`, makes the bound least at every t; not with Softsign,
    which is several ops to torch.

    Distances are computed in float64.

    Args:
        model: A zoo.MLP, or an nn.Sequential of linear layers and non-expansive activation functions.
        a: A solution, of which the mean counts, a state or a module.
        b: Another of the same layout.
        data: Inputs and classes.
        points: How many values of t, the ends included.
        batch_size: Inputs in a call of the model.

    Returns:
        The bound and the loss at each t.

    Raises:
        ModelError: If the bound does not hold for a layer of the model.
        DataError: If the targets are values.

    Example:
        >>> aligned = sym.act(coset.align(a, b, sym, "activations", model, digits.train).element, b)
        >>> before, after = (coset.interpolation_bound(model, a, end, digits.test, points=5) for end in (b, aligned))
        >>> after.mean_bound < before.mean_bound
        True
    """
    chain = _chain(model)
    like = states.of(model)
    ends = [
        check(with_order(q).mean, like=like, where=f"the {place} solution")
        for q, place in ((a, "first"), (b, "second"))
    ]
    split = as_split(data)
    if split.targets.is_floating_point():
        raise DataError("The targets are values, but the bound is one of the cross-entropy: give int64 classes.")
    line = barrier(geodesic(Dirac(ends[0]), Dirac(ends[1])), model, split, points, batch_size=batch_size)
    apart = _apart(chain, ends, split, batch_size)
    norms = [
        [float(torch.linalg.matrix_norm(end[f"{name}.weight"].double(), 2)) for end in ends]
        for name, module in chain
        if isinstance(module, nn.Linear)
    ]
    first, last = line.endpoints
    bound = [(1 - t) * first + t * last + LIPSCHITZ * _deviation(t, norms, apart) for t in line.t]
    return InterpolationBound(line.t, tuple(bound), line.loss)


def _deviation(t: float, norms: list[list[float]], apart: list[float]) -> float:
    """What |e_L(t)| cannot exceed, from the norms of each layer at both ends and |f_i(1) - f_i(0)|."""
    from_first = from_last = deviation = 0.0
    for (first, last), distance in zip(norms, apart, strict=True):
        deviation = (1 - t) * first * from_first + t * last * from_last
        from_first, from_last = deviation + t * distance, deviation + (1 - t) * distance
    return deviation


def _apart(chain: list[tuple[str, nn.Module]], ends: list[dict[str, Tensor]], split: Split, size: int) -> list[float]:
    """sqrt(mean over examples of |f_i(1) - f_i(0)|^2) for each linear layer i."""
    wide = [states.to(end, dtype=torch.float64) for end in ends]
    where = next(iter(wide[0].values())).device
    squares = [0.0 for _, module in chain if isinstance(module, nn.Linear)]
    rows = 0
    with torch.no_grad():
        for inputs, _ in split.minibatches(size, shuffle=False):
            outputs = [inputs.to(where, torch.float64)] * 2
            layer = 0
            for name, module in chain:
                if isinstance(module, nn.Linear):
                    outputs = [
                        linear(x, end[f"{name}.weight"], end.get(f"{name}.bias"))
                        for x, end in zip(outputs, wide, strict=True)
                    ]
                    squares[layer] += float((outputs[1] - outputs[0]).square().sum())
                    layer += 1
                else:
                    outputs = [module(x) for x in outputs]
            rows += outputs[0].shape[:-1].numel()
    return [math.sqrt(square / rows) for square in squares]


def _chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The names and modules of the layers in the order of the forward pass, if the bound is right for all of them."""
    layers = list(_layers(model))
    for name, module in layers:
        if type(module) is not nn.Linear and _slope(module) > 1:
            which = f"layer '{name}', a" if name else "a"
            raise ModelError(
                f"The bound does not hold for {which} {type(module).__name__}: give a zoo.MLP, or an nn.Sequential of "
                "linear layers and activation functions of slope one at most, such as ReLU or Tanh."
            )
    if not layers or type(layers[-1][1]) is not nn.Linear:
        raise ModelError(f"The last layer of {type(model).__name__} is not linear: give a model that ends with logits.")
    return layers


def _layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(model) is MLP:
        yield "", nn.Flatten()
        for k, layer in enumerate(model.layers):
            if k:
                yield f"{prefix}activation", model.activation
            yield f"{prefix}layers.{k}", layer
    elif type(model) is nn.Sequential:
        # named_children would leave out a module that comes again.
        for name, module in model._modules.items():
            assert module is not None
            yield from _layers(module, f"{prefix}{name}.")
    else:
        yield prefix.removesuffix("."), model


def _slope(module: nn.Module) -> float:
    """The largest slope of a map, infinite if it is not known."""
    if type(module) is nn.LeakyReLU:
        return max(1.0, abs(module.negative_slope))
    if type(module) is nn.ELU:
        return max(1.0, abs(module.alpha))
    return 1.0 if type(module) in NON_EXPANSIVE else math.inf


def _integral(values: tuple[float, ...]) -> float:
    return (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)
