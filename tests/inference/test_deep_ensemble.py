"""Deep ensembles: members, their folder, and how they are combined."""

from pathlib import Path

import pytest
import torch
from inference_problems import clusters, mlp
from torch import nn

import coset
from coset import Epoch
from coset.core.errors import CosetError
from coset.data import Split

QUICK = coset.MAP(epochs=3, batch_size=20)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())


def test_members_and_folder(tmp_path: Path) -> None:
    split, seen = clusters(), list[Epoch]()
    found = coset.fit(
        mlp(), split, coset.DeepEnsemble(3, QUICK), replicas=2, out=tmp_path, progress=coset.on_epoch(seen.append)
    )
    assert {(e.replica, e.copy) for e in seen} == {(r, c) for r in range(2) for c in range(3)}
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    each = {
        f"replica-{r}/copy-{c}/{f}"
        for r in range(2)
        for c in range(3)
        for f in ("metrics.jsonl", "solution.safetensors")
    }
    assert files == {"settings.json", *each, *(f"replica-{r}/solution.safetensors" for r in range(2))}
    members = []
    for r, q in enumerate(found):
        assert isinstance(q, coset.Ensemble) and len(q.components()) == 3
        assert equal(coset.load(tmp_path / f"replica-{r}/solution.safetensors").mean, q.mean)
        for c, (_, part) in enumerate(q.components()):
            assert equal(coset.load(tmp_path / f"replica-{r}/copy-{c}/solution.safetensors").mean, part.mean)
            members.append(part.mean)
    assert not any(equal(a, b) for i, a in enumerate(members) for b in members[:i])
    again = coset.fit(
        mlp(), split, coset.DeepEnsemble(3, QUICK), replicas=2, out=tmp_path, progress=lambda _: pytest.fail()
    )
    assert all(equal(a.pack()[1], b.pack()[1]) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("batched", [True, False])
def test_stopped_and_resumed(batched: bool, tmp_path: Path) -> None:
    """Together with vmap, and one by one, as dropout needs it."""
    net = mlp() if batched else nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3))
    split, method = clusters(), coset.DeepEnsemble(2, QUICK)

    def stop(epoch: Epoch) -> None:
        if epoch.copy == 1 and epoch.epoch == 2:
            raise KeyboardInterrupt

    (whole,) = coset.fit(net, split, method)
    with pytest.raises(KeyboardInterrupt):
        coset.fit(net, split, method, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0)
    assert (tmp_path / f"replica-0/copy-{0 if batched else 1}/checkpoint.pt").exists()
    (resumed,) = coset.fit(net, split, method, out=tmp_path)
    assert equal(whole.pack()[1], resumed.pack()[1])
    with pytest.raises(CosetError, match="another members"):
        coset.fit(net, split, coset.DeepEnsemble(3, QUICK), out=tmp_path)


def test_predictions_are_the_average() -> None:
    split = clusters()
    (q,) = coset.fit(mlp(), split, coset.DeepEnsemble(3, QUICK))
    probabilities = [coset.predict(coset.Dirac(part.mean), mlp(), split.inputs).exp() for _, part in q.components()]
    expected = torch.stack(probabilities).mean(0)
    assert torch.allclose(coset.predict(q, mlp(), split.inputs, samples=3).exp(), expected, atol=1e-6)


def test_regressions_that_learned_other_noises_are_a_mixture(tmp_path: Path) -> None:
    split = clusters()
    split = Split(split.inputs, split.inputs[:, :3])
    (mixed,) = coset.fit(mlp(), split, coset.DeepEnsemble(2, QUICK), out=tmp_path)
    assert isinstance(mixed, coset.Mixture) and len({part.noise for _, part in mixed.components()}) == 2
    (again,) = coset.fit(mlp(), split, coset.DeepEnsemble(2, QUICK), out=tmp_path)
    assert coset.evaluate(again, mlp(), split).nll == coset.evaluate(mixed, mlp(), split).nll
    fixed = coset.MAP(epochs=3, batch_size=20, noise=0.5)
    (same,) = coset.fit(mlp(), split, coset.DeepEnsemble(2, fixed))
    assert isinstance(same, coset.Ensemble) and same.noise == pytest.approx(0.5)


def test_one_member() -> None:
    (q,) = coset.fit(mlp(), clusters(), coset.DeepEnsemble(1, QUICK))
    assert isinstance(q, coset.Ensemble) and len(q.components()) == 1
    with pytest.raises(CosetError, match="members must be positive, not 0"):
        coset.DeepEnsemble(0)
