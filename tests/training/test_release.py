"""What a run held is free when it is over, before Python looks for garbage: a device would be full by then."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import coset
from coset import Collect, Population, collect, zoo
from coset.flow.coordinates import OwnStarts
from coset.flow.matching import FlowTraining, Matching
from coset.populations.chunk import Chunk
from coset.training.loop import MinibatchRun

NET = "mlp:3-4-2"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type], list["weakref.ref[object]"]]]:
    """All objects of a class from now on, without collections of garbage."""

    def watch(kind: type) -> list["weakref.ref[object]"]:
        found: list[weakref.ref[object]] = []
        begin = kind.__init__

        def noted(self: object, *args: object, **named: object) -> None:
            found.append(weakref.ref(self))
            begin(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", noted)
        return found

    gc.collect()
    gc.disable()
    yield watch
    gc.enable()


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 3, generator=generator), torch.randint(2, (32,), generator=generator)


@pytest.mark.parametrize("folder", [False, True])
def test_of_a_fit(watched: Callable[[type], list["weakref.ref[object]"]], tmp_path: Path, folder: bool) -> None:
    runs = watched(MinibatchRun)
    coset.fit(zoo.build(NET), examples(), coset.MAP(epochs=2), 2, out=tmp_path if folder else None)
    assert runs and all(run() is None for run in runs)


def test_of_a_collection(watched: Callable[[type], list["weakref.ref[object]"]]) -> None:
    chunks = watched(Chunk)
    collect(zoo.build(NET), examples(), 8, Collect(epochs=1, chunk=4))
    assert len(chunks) == 2 and all(chunk() is None for chunk in chunks)


def test_of_a_flow(watched: Callable[[type], list["weakref.ref[object]"]], tmp_path: Path) -> None:
    model = zoo.build(NET)
    given = {name: torch.randn(8, *x.shape) for name, x in model.state_dict().items()}
    learned, coordinates = watched(FlowTraining), watched(OwnStarts)
    flow = coset.Flow(coset.symmetry(model, zoo.example_input(model)), coupling="training")
    flow.fit(Population(given, given), Matching(epochs=1), model=model, data=examples(), out=tmp_path)
    assert learned and coordinates and all(one() is None for one in [*learned, *coordinates])
    assert len(flow.sample(3).states) == len(given)
