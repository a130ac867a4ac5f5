"""Networks that are trained together: their parameters as vectors, their data, and their random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
from coset.solutions.likelihood import Classification, Likelihood, likelihood_of
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
        self._weights: dict[int, Tensor] = {}

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
        if id(x) not in self._weights:
            self._weights[id(x)] = x + self._std[id(x)] * torch.randn_like(x)
        return self._weights[id(x)]


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
            return self._outputs_of_draw(self.unflatten(mean[0]), self.unflatten(std[0]), inputs[0]).unsqueeze(0)
        return vmap(self._outputs_of_draw, randomness="different")(self.unflatten(mean), self.unflatten(std), inputs)

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

    def _outputs_of_draw(self, mean: Tensors, std: Tensors, inputs: Tensor) -> Tensor:
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


NetworkIndex = tuple[int, ...]
"""Which network: (replica,), or (replica, copy) where a solution takes several."""


class Randomness:
    """A generator for each network, and torch's global ones as the networks see them.

    Starting points, the order of the data and the noise of weights come from a network's own generator, whoever is
    trained beside it. What a module draws by itself, as dropout does, comes from torch's global generators, which
    are set while the networks work and put back afterwards, so neither side disturbs the other.
    """

    def __init__(self, seed: int, rows: Sequence[NetworkIndex], device: torch.device) -> None:
        """Networks of all seeds differ: seed 0, replica 1 is not seed 1, replica 0."""
        self._global = [torch.default_generator]
        if device.type == "cuda":
            self._global.append(torch.cuda.default_generators[device.index])
        self._is_active = False
        self.generators = [torch.Generator(device).manual_seed(_word(seed, row, 0)) for row in rows]
        self._outer = [torch.Generator(g.device).manual_seed(_word(seed, rows[0], 1)).get_state() for g in self._global]

    @property
    def states(self) -> list[Tensor]:
        """Where all generators stand."""
        return [*(_states(self._global) if self._is_active else self._outer), *_states(self.generators)]

    @states.setter
    def states(self, states: list[Tensor]) -> None:
        cpu = [state.cpu() for state in states]
        self._outer = cpu[: len(self._outer)]
        _restore(self.generators, cpu[len(self._outer) :])

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let everything inside draw from these numbers."""
        outside = _states(self._global)
        _restore(self._global, self._outer)
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False
            self._outer = _states(self._global)
            _restore(self._global, outside)


@contextmanager
def seeded(seed: int, row: NetworkIndex) -> Iterator[None]:
    """Torch's CPU generator as the starting point of one network sees it, the same on every device."""
    outside = torch.default_generator.get_state()
    torch.default_generator.manual_seed(_word(seed, row, 2))
    try:
        yield
    finally:
        torch.default_generator.set_state(outside)


def _word(seed: int, row: NetworkIndex, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, *row]).generate_state(1, np.uint64)[0]) >> 2


def _states(generators: list[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]


def _restore(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """Networks to be trained together on one device.

    start: (rows, p) where each starts; split: the data that all of them see; likelihood: what the data ask for.
    memory: what a learner remembers beside its parameters, by name, as checkpoints hold it. context: what else it
    prepared before the first step. log_noise: (rows,) of the standard deviation of the targets, once a run has begun.
    """

    network: Network
    start: Tensor
    split: Split
    likelihood: Likelihood
    randomness: Randomness
    memory: dict[str, Any] = field(default_factory=dict)
    context: Any = None
    log_noise: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many networks there are."""
        return len(self.start)

    @property
    def device(self) -> torch.device:
        return self.start.device

    @property
    def classifies(self) -> bool:
        """Whether the targets are classes."""
        return isinstance(self.likelihood, Classification)

    def steps(self, batch_size: int) -> int:
        """Minibatches of an epoch; one of all examples if there are fewer."""
        return len(self.split) // min(batch_size, len(self.split))

    def noise(self, row: int) -> float | None:
        """The standard deviation of the targets of a network; None of a classifier."""
        return None if self.classifies or self.log_noise is None else float(self.log_noise[row].detach().exp())

    def normal(self) -> Tensor:
        """Standard normal noise (rows, p), for each network from its own generator."""
        out = torch.empty_like(self.start)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.normal_(generator=generator)
        return out

    def uniform(self) -> Tensor:
        """Uniform numbers (rows,) float64 in [0, 1), each from the network's own generator."""
        out = torch.empty(self.rows, dtype=torch.float64, device=self.device)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.uniform_(generator=generator)
        return out

    def orders(self, count: int) -> Tensor:
        """The first `count` examples of a random order for each network, (rows, count)."""
        n = len(self.split)
        orders = [torch.randperm(n, generator=g, device=self.device)[:count] for g in self.randomness.generators]
        return torch.stack(orders)
