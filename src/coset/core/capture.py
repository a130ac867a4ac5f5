"""A training step as one launch: captured into a CUDA graph where there is one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

log = logging.getLogger(__name__)

WARM_UP = 3  # steps before a capture, in which libraries choose their algorithms


def captured(
    step: Callable[[], None], changes: Sequence[Tensor], generators: Sequence[torch.Generator], device: torch.device
) -> Callable[[], None]:
    """What replays `step` on CUDA, without the 10 microseconds of Python that each kernel costs.

    `step` takes nothing and changes only the tensors `changes`, in place, and `generators`; both are as before when
    this returns. A step that cannot be captured, as one that reads a number from the device, stays as it is.
    """
    # Detached: a clone in the graph of gradients would tie the capture to this stream.
    before = [x.detach().clone() for x in changes]
    # The global generator, from which dropout draws, belongs to every capture.
    sources = [*generators, torch.cuda.default_generators[device.index or 0]]
    states = [generator.get_state() for generator in sources]
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))

    def rehearse() -> None:
        # What is left may be one step, so every rehearsal begins where the first one did.
        step()
        _restore(changes, before)

    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_UP - 1):
                rehearse()
            # A capture that fails leaves generators unusable, so find out before.
            with _refusing_to_wait():
                rehearse()
    except RuntimeError as error:
        log.info("the step cannot be captured: %s", str(error).splitlines()[0])
        replay = step
    else:
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph):
            step()
        replay = graph.replay
    torch.cuda.current_stream(device).wait_stream(side)
    _restore(changes, before)
    for generator, state in zip(sources, states, strict=True):
        generator.set_state(state)
    return replay


@torch.no_grad()
def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for x, old in zip(tensors, values, strict=True):
        x.copy_(old)


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Let whatever makes the CPU wait for the device raise."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode does not know every such op
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
