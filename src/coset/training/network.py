"""A model as a function of its trainable parameters as one vector, for one network or many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from coset.core import state as states
from coset.core.errors import ModelError
from coset.core.functional import evaluating, functional_call, refuse_shared_modules
from coset.data import Split
from coset.solutions.likelihood import likelihood_of
from coset.solutions.model_outputs import convolves

LINEAR = (F.linear, F.conv1d, F.conv2d, F.conv3d)
TINY = 1e-16  # keeps the gradient of the root finite where an input is zero


class Reparameterized(TorchFunctionMode):
    """While it is active, a call with the mean of a weight in it has a random one in its place.

    A linear layer or convolution with weights N(M, S^2) and biases N(b, c^2) computes, for each example,
    N(M x + b, S^2 x^2 + c^2), which is drawn without the weights: examples of a batch then see independent weights,
    and the gradient's variance falls as 1/m with their number m (Kingma, Salimans & Welling 2015, Eq. 6). A weight
    that is used otherwise is drawn once for all examples.
    """

    def __init__(self, std: Mapping[int, Tensor]) -> None:
        """`std` has the standard deviation of a mean by the `id` of its tensor."""
        super().__init__()
        self._std = std
        self._drawn: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR and len(args) > 1 and id(args[1]) in self._std:
            return self._linear(func, *args, **kwargs)
        return func(*tree_map(self._draw, args), **tree_map(self._draw, kwargs))

    def _linear(
        self, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **key: Any
    ) -> Tensor:
        variance = None if bias is None else self._std.get(id(bias), torch.zeros_like(bias)).square()
        mean = func(x, weight, bias, *rest, **key)
        spread = func(x.square(), self._std[id(weight)].square(), variance, *rest, **key).add(TINY).sqrt()
        return mean + spread * torch.randn_like(mean)

    def _draw(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or id(x) not in self._std:
            return x
        if id(x) not in self._drawn:
            self._drawn[id(x)] = x + self._std[id(x)] * torch.randn_like(x)
        return self._drawn[id(x)]


Tensors = dict[str, Tensor]
CACHED = 2**18  # parameters of a network that several fit into a processor's caches


class Network:
    """(parameters, inputs) -> outputs, for a row of parameters each.

    The p trainable parameters lie in one vector, so that noise, priors and optimizers need one kernel each instead of
    one a tensor. What is not trained, frozen parameters and buffers, stays in the model, which is this run's own and
    whose buffers training changes.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.shapes = {name: p.shape for name, p in trained.items()}
        self._sizes = [p.numel() for p in trained.values()]
        self._dtypes = [p.dtype for p in trained.values()]
        self.dtype = torch.float64 if torch.float64 in self._dtypes else torch.float32
        # On CUDA convolutions are fastest with the channels last; there are few other uses of four dimensions.
        self._format = torch.channels_last if _on_cuda(model) and convolves(model) else torch.contiguous_format
        self._one: Callable[[Tensors, Tensor], Tensor] = self._outputs
        self._many: Callable[[Tensors, Tensor], Tensor] = vmap(self._outputs)

    def compile(self) -> None:
        """Let torch compile the model: some ten seconds or more, after which norms and activations are fused."""
        refuse_shared_modules(self.model)
        self._one, self._many = (torch.compile(call, dynamic=False) for call in (self._one, self._many))

    @property
    def names(self) -> list[str]:
        """The trainable parameters in their order; of tied ones the first."""
        return list(self.shapes)

    @property
    def size(self) -> int:
        """The number p of trainable parameters."""
        return sum(self._sizes)

    def flatten(self, state: states.State) -> Tensor:
        """The trainable parameters of a state, (p,)."""
        return torch.cat([state[name].detach().flatten().to(self.dtype) for name in self.shapes])

    def unflatten(self, flat: Tensor) -> Tensors:
        """Vectors (..., p) as tensors (..., *shape) by name."""
        parts = zip(self.shapes.items(), torch.split(flat, self._sizes, -1), self._dtypes, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)).to(dtype) for (name, shape), part, dtype in parts}

    def __call__(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (rows, m, ...) of networks (rows, p), each on its own inputs (rows, m, ...)."""
        if len(flat) == 1:
            return self._one(self.unflatten(flat[0]), inputs[0]).unsqueeze(0)
        return self._many(self.unflatten(flat), inputs)

    def aside(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """The same outputs, but the model's buffers stay as they are, also in training."""
        if len(flat) > 1:  # models that change buffers are not trained together
            return self(flat, inputs)
        buffers = {name: x.clone() for name, x in self.model.named_buffers()}
        return self._one({**self.unflatten(flat[0]), **buffers}, inputs[0]).unsqueeze(0)

    def local(self, mean: Tensor, std: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (rows, m, ...) of weights N(mean, std^2) that are drawn by the local reparameterisation trick."""
        if len(mean) == 1:
            return self._drawn(self.unflatten(mean[0]), self.unflatten(std[0]), inputs[0]).unsqueeze(0)
        return vmap(self._drawn, randomness="different")(self.unflatten(mean), self.unflatten(std), inputs)

    def state(self, flat: Tensor) -> Tensors:
        """The whole state of the model with parameters (p,), or population with (n, p); tied names hold one tensor."""
        trained = {name: x.detach().clone() for name, x in self.unflatten(flat).items()}
        owner = {id(p): name for name, p in self.model.named_parameters()}
        tied = {name: owner[id(p)] for name, p in self.model.named_parameters(remove_duplicate=False)}
        own = states.of(self.model)
        other = {id(x): x.expand(flat.shape[:-1] + x.shape).clone() for x in own.values()}
        return {name: trained.get(tied.get(name, name), other[id(x)]) for name, x in own.items()}

    def _outputs(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        if self._format == torch.channels_last:
            tensors = {name: _formatted(x, self._format) for name, x in tensors.items()}
            inputs = _formatted(inputs, self._format)
        outputs = functional_call(self.model, tensors, (inputs,))
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"{type(self.model).__name__} returns a {type(outputs).__name__} in training, where one tensor is "
                "expected: wrap it in a module that returns the outputs alone."
            )
        return outputs

    def _drawn(self, mean: Tensors, std: Tensors, inputs: Tensor) -> Tensor:
        with Reparameterized({id(mean[name]): s for name, s in std.items()}):
            return self._outputs(mean, inputs)


def batches(model: nn.Module, inputs: Tensor) -> bool:
    """Whether several networks like this one can be trained at once, and it pays.

    Not if the model draws random numbers or changes its buffers in training, as dropout and batch norm do, or if
    `vmap` does not know one of its ops. A convolution of several networks is a grouped one, which is slower than one
    convolution after the other; and two large networks share a processor's caches, to the harm of both.
    """
    network = Network(model)
    if convolves(model) or (not _on_cuda(model) and network.size > CACHED):
        return False
    flat = network.flatten(states.of(model)).expand(2, -1).clone().requires_grad_()
    before = states.of(model)
    try:
        outputs = network(flat, inputs[:2].expand(2, *inputs[:2].shape))
        torch.autograd.grad(outputs.sum(), flat)
    except (RuntimeError, ValueError, NotImplementedError, TypeError):
        return False
    return all(torch.equal(x, before[name]) for name, x in states.of(model).items())


def _on_cuda(model: nn.Module) -> bool:
    return any(p.is_cuda for p in model.parameters())


def _formatted(x: Tensor, format: torch.memory_format) -> Tensor:
    return x.contiguous(memory_format=format) if x.ndim == 4 else x


def check_call(model: nn.Module, split: Split, device: torch.device) -> None:
    """Find out before training that the model does not fit the data; on CUDA a wrong class kills the process."""
    few = split.inputs[:2]
    with evaluating(model, device) as ready:
        likelihood = likelihood_of(split.targets)
        outputs = likelihood.read(states.call(ready, states.of(ready), (few,)), model, len(few))
        likelihood.check(outputs, split.targets)
