"""Networks of one kind, trained from several seeds: what the figures have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import nn

from coset import MAP, VI, Solution, Symmetry, align, fit, on_epoch, symmetry, zoo
from coset.data import DataSet
from coset_papers.images import IMAGE_SETS, load
from coset_papers.settings import Settings

COMPARED = 5000  # examples by which activations are matched


@dataclass(frozen=True)
class PosteriorStudy:
    """`replicas` networks, trained by `method` on `examples` of the images `data`, all of them when None.

    Figures that ask for the same study at the same scale share its networks.
    """

    data: str
    model: str
    method: VI | MAP
    replicas: int = 2
    examples: int | None = None

    @property
    def title(self) -> str:
        """Network and data in words."""
        kind, _, rest = self.model.partition(":")
        options = dict(part.partition("=")[::2] for part in rest.split(","))
        name = f"MLP {rest.split('-')[1]}" if kind == "mlp" else f"ResNet20 x{options.get('width', 1)}"
        return f"{name}, {IMAGE_SETS[self.data].title}"

    def parts(self, settings: Settings) -> DataSet:
        """Training and test examples on the device."""
        return load(self.data, settings.device, self.examples)

    def build(self) -> nn.Module:
        """The model; its own weights do not count."""
        return zoo.build(self.model)

    def key(self) -> dict[str, Any]:
        """All that the networks depend on, as JSON can hold it; how many there are is not among it."""
        method = {"name": type(self.method).__name__} | asdict(self.method)
        return {"data": self.data, "model": self.model, "examples": self.examples, "method": method}

    def solutions(self, settings: Settings) -> list[Solution]:
        """The trained networks; those that were trained before are read."""
        say = settings.listener(
            lambda epoch: f"{self.title}: network {epoch.replica}, epoch {epoch.epoch} of {epoch.epochs}"
        )
        return fit(
            self.build(),
            self.parts(settings).train,
            self.method,
            self.replicas,
            settings.seed,
            settings.device,
            out=settings.folder(f"rossi2023-{self.data}-{self.model.partition(':')[0]}", **self.key()),
            progress=on_epoch(say),
        )

    def symmetry(self, settings: Settings) -> Symmetry:
        """The group of the model."""
        return _symmetry(self.model, self.parts(settings).test.inputs.shape[1:])

    def pairs(self, settings: Settings, cost: str) -> Iterator[tuple[tuple[int, int], Solution, Solution]]:
        """All pairs of networks, the second moved by the best element for `cost`; "naive" leaves it as it is."""
        solutions = self.solutions(settings)
        for i, j in combinations(range(len(solutions)), 2):
            a, b = solutions[i], solutions[j]
            if cost != "naive":
                sym = self.symmetry(settings)
                train = self.parts(settings).train
                examples = train.subset(min(COMPARED, len(train)), torch.Generator().manual_seed(settings.seed))
                b = sym.act(align(a, b, sym, cost, self.build(), examples).element, b)
            yield (i, j), a, b

    def mode(self) -> PosteriorStudy:
        """The same by MAP: the mode of the posterior that VI fits a Gaussian to."""
        assert isinstance(self.method, VI)
        own = {each.name: getattr(self.method, each.name) for each in fields(MAP) if each.name != "weight_decay"}
        examples = self.examples or IMAGE_SETS[self.data].examples
        return replace(self, method=MAP(**own, weight_decay=1 / (examples * self.method.prior_variance)))


@cache  # by the architecture alone, which the figures meet again and again
def _symmetry(model: str, shape: tuple[int, ...]) -> Symmetry:
    return symmetry(zoo.build(model), (torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)),))
