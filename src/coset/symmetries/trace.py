"""A model and example inputs to a graph of ATen ops, without running on real weights where there are none."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._decomp import decompositions
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from coset.core.errors import CosetError, SymmetryError
from coset.core.functional import evaluation_mode, named_tensors, tied_names

LONGEST_LIST = 64


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
    """

    program: ExportedProgram
    sources: Mapping[str, Source]
    mutated: Sequence[str | None]
    aliases: Mapping[str, str]

    @property
    def module(self) -> GraphModule:
        module: GraphModule = self.program.graph_module
        return module

    @property
    def graph(self) -> Graph:
        return self.module.graph

    def positions(self, name: str) -> list[int] | None:
        """A short list of integers that the model holds as a constant."""
        x = self.program.constants.get(name)
        if not isinstance(x, Tensor) or x.dtype != torch.int64 or x.dim() != 1 or x.is_meta:
            return None
        return [int(entry) for entry in x] if 0 < len(x) <= LONGEST_LIST else None

    def flat_inputs(self, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the graph's placeholders stand for, with the tensors of ``state`` in place of the model's."""
        inputs = self.program._graph_module_flat_inputs(args, dict(kwargs))
        names = [node.name for node in self.graph.nodes if node.op == "placeholder"]
        return [
            state[self.sources[name].name] if self.sources[name].kind == "state" else value
            for name, value in zip(names, inputs, strict=True)
        ]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings and graph dumps out of the user's terminal; errors are raised, not logged."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def trace(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Trace:
    """Export ``model`` on example inputs. A model on the meta device is traced without any weights."""
    if any(parameter.is_meta for parameter in model.parameters()):
        # Without weights only the shapes of the inputs matter.
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.to("meta"), (tuple(args), dict(kwargs or {})))
    aliases = tied_names(model)
    every = {name: id(tensor) for name, tensor in named_tensors(model)}
    canonical = {ident: name for name, ident in reversed(list(every.items())) if name in aliases}
    with evaluation_mode(model), quiet(), _final_states():
        try:
            program = _functional(torch.export.export(model, tuple(args), dict(kwargs or {}), strict=False))
        except Exception as error:
            first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            raise SymmetryError(
                f"{type(model).__name__} cannot be traced by torch.export ({type(error).__name__}: {first.strip()}); "
                "simplify its forward, or write the symmetry by hand with Symmetry.from_json"
            ) from error
    sources: dict[str, Source] = {}
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None:
            state_name = canonical.get(every.get(spec.target, -1))
            kind: Literal["state", "constant"] = "constant" if state_name is None else "state"
            sources[name] = Source(kind, spec.target if state_name is None else aliases[state_name])
        elif spec.kind is InputKind.USER_INPUT:
            sources[name] = Source("input", name)
        else:
            sources[name] = Source("constant", spec.target or name)
    mutated = [
        spec.target if spec.kind is OutputKind.BUFFER_MUTATION else None
        for spec in program.graph_signature.output_specs
    ]
    return Trace(program, sources, mutated, aliases)


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


Args = Tensor | tuple[Any, ...]
"""The positional arguments of a model, or its only one."""


def positional(args: Args) -> tuple[Any, ...]:
    """The arguments as a tuple; a lone tensor is one of them, where a tuple of it would be its rows."""
    if isinstance(args, Tensor):
        return (args,)
    if not isinstance(args, tuple | list):
        raise CosetError(
            f"What the model is called with is a {type(args).__name__}: give a tuple of its arguments, or a tensor if "
            "there is one, and those that have names as kwargs."
        )
    return tuple(args)
