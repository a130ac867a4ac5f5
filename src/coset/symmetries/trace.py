"""A model and example inputs to a graph of ATen ops, without running on real weights where there are none."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._decomp import decompositions
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules import transformer
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from coset.core.errors import SymmetryError
from coset.core.functional import evaluation_mode, functional_call, named_tensors, tied_names
from coset.core.state import State
from coset.symmetries.examples import Example, resizings, tensors_in

logger = logging.getLogger(__name__)

LONGEST_LIST = 64
Trains = Callable[[nn.Module], bool]


@dataclass(frozen=True)
class Source:
    """What a placeholder of the graph holds; ``name`` is its state_dict name for tensors of the state."""

    kind: Literal["state", "input", "constant"]
    name: str


@dataclass(frozen=True)
class Trace:
    """An exported model.

    sources
        what each placeholder is
    mutated
        for each entry of the graph's output: the buffer it updates, or None for a real output
    aliases
        state name -> the one name that stands for its tensor (tied parameters share one)
    example
        the call that was traced
    """

    program: ExportedProgram
    sources: Mapping[str, Source]
    mutated: Sequence[str | None]
    aliases: Mapping[str, str]
    example: Example

    @property
    def module(self) -> GraphModule:
        module: GraphModule = self.program.graph_module
        return module

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def buffers(self) -> set[str]:
        """Names of the tensors of the state that are not trained."""
        names = (name.removeprefix(PREFIX) for name in self.program.graph_signature.buffers)
        return {self.aliases.get(name, name) for name in names}

    def positions(self, name: str) -> list[int] | None:
        """A short list of integers that the model holds as a constant."""
        x = self.program.constants.get(name, self.program.constants.get(PREFIX + name))
        if not isinstance(x, Tensor) or x.dtype != torch.int64 or x.dim() != 1 or x.is_meta:
            return None
        return [int(entry) for entry in x] if 0 < len(x) <= LONGEST_LIST else None

    def is_zero(self, name: str) -> bool:
        """Whether it is one number, zero, that the code of the model says, as `torch.tensor(0.0)` does."""
        x = self.program.constants.get(name)
        said = name in self.program.graph_signature.lifted_tensor_constants
        return said and isinstance(x, Tensor) and x.dim() == 0 and not x.is_meta and bool(x == 0)

    def inputs(self, state: Mapping[str, Tensor]) -> list[Any]:
        """What the graph's placeholders stand for, with the tensors of ``state`` in place of the model's."""
        inputs = self.program._graph_module_flat_inputs(tuple(self.example.copy().tensors), {})
        names = [node.name for node in self.graph.nodes if node.op == "placeholder"]
        return [
            state[self.sources[name].name] if self.sources[name].kind == "state" else value
            for name, value in zip(names, inputs, strict=True)
        ]


class _OnTensors(nn.Module):
    """The model as a function of its input tensors alone to a list of tensors, whatever holds them."""

    def __init__(self, model: nn.Module, example: Example, rebound: Callable[[Iterable[str]], object]) -> None:
        """The exporter takes back what a call writes into attributes, so `rebound` hears names of buffers."""
        super().__init__()
        self.model = model
        self._example = example
        self._rebound = rebound

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        call = self._example.replace(lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf)
        before = dict(self.model.named_buffers())
        output = self.model(*call.args, **call.kwargs)
        # `self.mean = mean` gives a buffer another tensor, which the exporter does not tell of.
        after = {name: x for name, x in self.model.named_buffers() if x is not before.get(name)}
        self._rebound(after)
        return [*output, *after.values()]


PREFIX = "model."
"""What `_OnTensors` puts before the names of the model's tensors and modules."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings and graph dumps out of the user's terminal; errors are raised, not logged or printed."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Evaluation, or training but for norms and dropout, whose batches and chance would tell nothing.

    A call gives the list of all tensors that the model returns. What it leaves behind in modules, such as the last
    hidden state, is taken away again.
    """
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        with evaluation_mode(model), _without_checks(), _tensors_alone(model):
            for module, *_ in before:
                module.training = training and not isinstance(module, WITHOUT_TRAINING)
            yield
    finally:
        for module, attributes, buffers in before:
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


WITHOUT_TRAINING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


def is_running_norm(module: nn.Module) -> bool:
    """Whether a module keeps statistics, which are measured again by `coset.recompute_norms`."""
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None


def ways_to_train(model: nn.Module) -> Sequence[Trains]:
    """Which modules are in training mode: those that keep statistics alone, and all."""
    alone = [is_running_norm] if any(map(is_running_norm, model.modules())) else []
    return [*alone, lambda module: True]


@contextlib.contextmanager
def training(model: nn.Module, trains: Trains) -> Iterator[None]:
    """The model as in evaluation, but for the modules that train, of which batch norms read the batch's statistics."""
    with mode(model, False):
        for module in model.modules():
            module.training = trains(module)
        yield


def trainable_call(run: Callable[[State, Example], list[Tensor]], state: State, example: Example) -> Example | None:
    """The example, or one of another size, that the model takes in training: batch norms refuse a batch of one."""
    for call in (example, *(resizing.of(example) for resizing in resizings(example, thorough=False))):
        try:
            with Guarded():
                run(state, call)
        except Exception as error:  # whatever a model raises that wants targets, a GPU or another batch
            logger.debug("the model does not take the call in training mode: %s", error)
        else:
            return call
    return None


@contextlib.contextmanager
def _tensors_alone(model: nn.Module) -> Iterator[None]:
    """A model that yields must do so while it is called: after, it has its own weights again."""
    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, args: Any, output: Any) -> list[Tensor] | None:
        nonlocal depth
        depth -= 1  # a model may call itself
        return None if depth else tensors_in(output)

    handles = [model.register_forward_pre_hook(enter), model.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Single(nn.Module):
    """What `nn.DataParallel` wraps, under the same names, on one device."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Distributions look at the values of their parameters, which a trace has not."""
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)


def single(model: nn.Module, example: Example) -> nn.Module:
    """The model without copies on other devices; where lazy layers have no shapes yet, a copy that was called once."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = _Single(model.module).train(model.training)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise SymmetryError(
                f"{repr(name) if name else 'The model'} is TorchScript, which torch.export does not read: give the "
                "module that it was made from, with its weights loaded."
            )
    lazy = [x for _, x in named_tensors(model) if is_lazy(x)]
    if not lazy:
        return model
    # torch copies lazy parameters, and no lazy buffers.
    model = copy.deepcopy(model, {id(x): UninitializedBuffer() for x in lazy if isinstance(x, UninitializedBuffer)})
    call = example.copy()
    with mode(model, example.training):
        model(*call.args, **call.kwargs)
    return model


def another_size(model: nn.Module, example: Example) -> Example | None:
    """The example with every size changed that the model lets change; None if there is none."""
    current, changed = example, set[str]()
    for resizing in resizings(example, thorough=False):
        if resizing.axis not in changed:
            candidate = resizing.of(current)
            if _takes(model, candidate):
                current = candidate
                changed.add(resizing.axis)
    return current if changed else None


def _takes(model: nn.Module, example: Example) -> bool:
    return touched(model, example) is not None


def touched(model: nn.Module, example: Example) -> set[str] | None:
    """The names of the tensors of the state that a call uses; None if the model does not take it."""
    meta = any(parameter.is_meta for parameter in model.parameters())
    call = example.replace(lambda x: x.to("meta") if meta and isinstance(x, Tensor) else x).copy()
    tensors = {name: x.clone() for name, x in model.named_buffers()}
    witness = _Witness()
    try:
        with mode(model, example.training), quiet(), witness:
            functional_call(model, tensors, call.args, dict(call.kwargs))
    except Exception:  # whatever a model raises for inputs that are not its own
        return None
    every = [*model.named_parameters(remove_duplicate=False), *tensors.items()]
    return {name for name, x in every if id(x) in witness.used}


class Guarded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses numbers that an op would follow beyond its memory, as made-up calls may hold."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """`torch.cond` and loops are compiled as they are called, and this mode is no part of what they compute."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "overloadpacket", None) in _BAGS:
            bound = dict(
                zip((argument.name for argument in func._schema.arguments), args, strict=False), **kwargs or {}
            )
            if not bound["indices"].is_meta:
                closed = bool(bound.get("include_last_offset", False))
                _check_bag(len(bound["weight"]), bound["indices"], bound["offsets"], closed)
        return func(*args, **(kwargs or {}))


_BAGS = (torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only, torch.ops.aten.embedding_bag)


def _check_bag(rows: int, indices: Tensor, offsets: Tensor, closed: bool) -> None:
    """torch looks up neither rows nor offsets."""
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
        raise IndexError(f"an index is none of the {rows} rows of an embedding")
    bounds = offsets.tolist()
    if bounds[:1] != [0] or bounds != sorted(bounds) or bounds[-1] > len(indices) or (closed and len(bounds) < 2):
        raise IndexError(f"the offsets {bounds} are not those of {len(indices)} indices")
    if closed and bounds[-1] != len(indices):
        raise IndexError(f"the last offset {bounds[-1]} is not the number of indices, {len(indices)}")


class _Witness(Guarded):  # type: ignore[no-untyped-call]
    """Notes which tensors ops are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.used.update(id(x) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        return super().__torch_dispatch__(func, types, args, kwargs)


def trace(model: nn.Module, example: Example) -> Trace:
    """Export ``model`` on an example. A model on the meta device is traced without any weights."""
    if any(parameter.is_meta for parameter in model.parameters()):
        # Without weights only the shapes of the inputs matter.
        example = example.replace(lambda x: x.to("meta") if isinstance(x, Tensor) else x)
    aliases = tied_names(model)
    every = {name: id(tensor) for name, tensor in named_tensors(model)}
    canonical = {ident: name for name, ident in reversed(list(every.items())) if name in aliases}
    with mode(model, example.training), quiet(), _final_states(), _masks_unseen():
        try:
            rebound: dict[str, None] = {}
            function = _OnTensors(model, example, lambda names: rebound.update(dict.fromkeys(names)))
            exported = torch.export.export(function, tuple(example.copy().tensors), strict=False)
            program = _functional(exported)
        except Exception as error:
            first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            raise SymmetryError(
                f"{type(model).__name__} cannot be traced by torch.export ({type(error).__name__}: {first.strip()}); "
                "simplify its forward, or write the symmetry by hand with Symmetry.from_json"
            ) from error
    sources: dict[str, Source] = {}
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        target = None if spec.target is None else spec.target.removeprefix(PREFIX)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and target is not None:
            state_name = canonical.get(every.get(target, -1))
            kind: Literal["state", "constant"] = "constant" if state_name is None else "state"
            sources[name] = Source(kind, target if state_name is None else aliases[state_name])
        elif spec.kind is InputKind.USER_INPUT:
            sources[name] = Source("input", name)
        else:
            sources[name] = Source("constant", spec.target or name)
    mutated = [
        spec.target.removeprefix(PREFIX) if spec.kind is OutputKind.BUFFER_MUTATION and spec.target else None
        for spec in program.graph_signature.output_specs
    ]
    mutated[len(mutated) - len(rebound) :] = rebound
    return Trace(program, sources, mutated, aliases, example)


@contextlib.contextmanager
def _final_states() -> Iterator[None]:
    """Up to torch 2.11 an LSTM's last states are traced with an axis too many; they have the shape of the first."""
    layer: Callable[..., Any] = decompositions.one_layer_lstm

    def with_shapes(x: Tensor, first: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        out, last = layer(x, first, *args, **kwargs)
        return out, tuple(a.reshape(b.shape) for a, b in zip(last, first, strict=True))

    decompositions.one_layer_lstm = with_shapes  # type: ignore[assignment]
    try:
        yield
    finally:
        decompositions.one_layer_lstm = layer


@contextlib.contextmanager
def _masks_unseen() -> Iterator[None]:
    """`nn.Transformer` looks whether a mask is causal, as a hint to kernels; a trace has no numbers to look at."""
    look = transformer._detect_is_causal_mask

    def hint(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = hint
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = look


def _functional(program: ExportedProgram) -> ExportedProgram:
    """Without in-place ops. Where torch cannot rewrite a program with data-dependent sizes, it must have none."""
    try:
        functional: ExportedProgram = program.run_decompositions({})
        return functional
    except Exception:
        schemas = [getattr(node.target, "_schema", None) for node in program.graph.nodes]
        if any(schema is not None and schema.is_mutable for schema in schemas):
            raise
        return program


def op_name(node: Node) -> str:
    """The name of a node's op, without the namespace of PyTorch's own: `linear`, `mylib::cdist`."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).removeprefix("aten::")
    return str(getattr(node.target, "__name__", node.target))


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The shape as numbers; None where a size depends on the data."""
    try:
        return tuple(int(size) for size in tensor.shape)
    except GuardOnDataDependentSymNode:
        return None
