"""`python -m bench transformers`, at the smallest scale and on data made up here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coset
from bench import transformers
from bench.decoupled_decay import AdamW, DecayingAdam
from bench.transformers import FAMILIES, ROWS, SCALES, Pair, windows
from coset import Split, data
from coset.data import DataSet, Standardization

ONE = Standardization(torch.zeros(()), torch.ones(()))
Run = Callable[..., Any]


def made_up(name: str, device: str, context: int = 0) -> DataSet:
    """A text in which every character decides the next one, or images whose class is their brightness."""
    if name == "tinyshakespeare":
        text = (torch.arange(512 * context + 1) * 7) % 65
        inputs, targets = (text[k : k + 512 * context].view(512, context) for k in (0, 1))
    else:
        targets = torch.arange(512) % 10
        inputs = targets[:, None, None, None] / 5 - 1 + 0.1 * torch.randn(512, 3, 32, 32)
    split = Split(inputs, targets)
    return DataSet(name, split, split, None, ONE)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the smallest scale still less, since each of the tests trains networks."""
    torch.manual_seed(0)
    monkeypatch.setattr(data, "load", made_up)
    tiny = {"dim": 16, "depth": 1, "context": 16, "train": 64, "windows": 8, "images": 16, "matched": 16}
    monkeypatch.setitem(SCALES, "smoke", replace(SCALES["smoke"], **tiny))


def test_a_run_goes_on_and_its_record_grows(run: Run, small: None, tmp_path: Path) -> None:
    out, work = tmp_path / "new" / "record.json", tmp_path / "work"
    words = ["bench", "transformers", "--scale", "smoke", "--networks", "3", "--work", work, "--out", out]
    result = run(*words, "gpt-rms", "--rows", "naive,folded")
    assert result.exit_code == 0, result.stderr
    assert "gpt-rms: network 2 epoch 1" in result.stdout and "published barrier" in result.stdout
    first = json.loads(out.read_text())
    family = first["families"]["gpt-rms"]
    assert first["command"] == "python -m bench transformers --device cpu --scale smoke"
    assert list(family["rows"]) == ["naive", "folded"]
    assert len(set(family["networks"])) == 3  # seeds and orders of the data are others
    assert 0 <= family["largest change of a loss"] < 1e-4
    naive = family["rows"]["naive"]
    for pair in naive["pairs"]:
        chord = [pair["loss"][0] + k / 10 * (pair["loss"][-1] - pair["loss"][0]) for k in range(11)]
        excess = [loss - straight for loss, straight in zip(pair["loss"], chord, strict=True)]
        assert pair["barrier"] == pytest.approx(max(excess))
    heights = torch.tensor([pair["barrier"] for pair in naive["pairs"]], dtype=torch.float64)
    assert naive["barrier"] == pytest.approx([float(heights.mean()), float(heights.std() / math.sqrt(3))])
    halves = [pair["loss"][5] for pair in naive["pairs"]]
    assert naive["loss halfway"][0] == pytest.approx(sum(halves) / 3)
    ends = {loss for pair in naive["pairs"] for loss in (pair["loss"][0], pair["loss"][-1])}
    assert family["loss"][0] == pytest.approx(sum(ends) / 3)

    # Only what is new is measured, and what is there stays.
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*.json")}
    assert run(*words, "gpt-rms", "--rows", "naive,permutations").exit_code == 0
    second = json.loads(out.read_text())["families"]["gpt-rms"]
    assert list(second["rows"]) == ["naive", "folded", "permutations"]
    assert second["networks"] == family["networks"] and second["rows"]["folded"] == family["rows"]["folded"]
    assert all(path.stat().st_mtime_ns == time for path, time in files.items())
    assert run(*words, "vit-cifar10", "--rows", "naive").exit_code == 0
    families = json.loads(out.read_text())["families"]
    assert families["gpt-rms"] == second and list(families["vit-cifar10"]["rows"]) == ["naive"]

    # Rows of other networks are none of these.
    again = run(
        *words[:-4], "--work", tmp_path / "other", "--out", out, "--networks", "2", "gpt-rms", "--rows", "naive"
    )
    assert again.exit_code == 0
    assert list(json.loads(out.read_text())["families"]["gpt-rms"]["rows"]) == ["naive"]
    full = run("bench", "transformers", "gpt-rms", "--out", out)
    assert full.exit_code == 2 and "holds a record of another scale, smoke" in full.stderr


@pytest.mark.parametrize("name", list(FAMILIES))
def test_weights_find_what_permutations_do_not(name: str, small: None) -> None:
    """The second network is the first one, moved by a random element of the whole group."""
    family, scale = FAMILIES[name], SCALES["smoke"]
    _, test = family.splits(scale, "cpu")
    model = coset.zoo.build(family.spec(scale))
    sym = coset.symmetry(model, coset.zoo.example_input(model), verify=False)
    a = dict(coset.state.of(model))
    b = sym.act(sym.random(torch.Generator().manual_seed(1), scalings=False, matrices=True), coset.fold(a, sym))
    pair = Pair(a, b, sym, model, test)
    distances = []
    for row in ("folded", "permutations", "weights"):
        first, second = ROWS[row](pair)
        distances.append(float(coset.state.norm(coset.state.sub(first, second)) / coset.state.norm(first)))
    assert distances[2] < 1e-5 and min(distances[:2]) > 0.1
    assert family.published.keys() <= {*ROWS, "learned"}


def test_rows_are_measured_anew_by_other_code(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure() -> None:
        run = transformers.Run("gpt-ln", FAMILIES["gpt-ln"], SCALES["smoke"], "cpu", tmp_path)
        run.measure(2, ["naive"], None)

    measure()
    measure()
    assert len(list((tmp_path / "rows").iterdir())) == 1
    monkeypatch.setattr(transformers, "code_digest", lambda: "other")
    measure()
    assert len(list((tmp_path / "rows").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt-rm"], "There is no family 'gpt-rm', only gpt-rms, gpt-ln, llama"),
        (["--rows", "naive,weight"], "There is no row 'weight', only naive, folded, permutations, weights"),
        (["--scale", "tiny"], "There is no scale 'tiny', only full, smoke"),
    ],
)
def test_wrong_words(run: Run, words: list[str], message: str) -> None:
    result = run("bench", "transformers", *words)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


def test_windows_of_a_text_may_overlap() -> None:
    text = torch.arange(33)
    split = windows(Split(text[:32].view(4, 8), text[1:].view(4, 8)), 5)
    assert split.inputs[:, 0].tolist() == [0, 5, 10, 15, 20]
    assert torch.equal(split.targets, split.inputs + 1)


def test_sizes_are_those_of_the_papers() -> None:
    sizes = {name: coset.zoo.build(family.spec(SCALES["full"])).state_dict() for name, family in FAMILIES.items()}
    for name, state in sizes.items():
        assert len({key.split(".")[1] for key in state if key.startswith("blocks.")}) == 6
        assert state["norm.weight"].shape == (256,) and ("norm.bias" in state) == (name not in ("gpt-rms", "llama"))
    assert sizes["vit-cifar100"]["blocks.0.mlp.0.weight"].shape == (512, 256)
    assert sizes["gpt-ln"]["positions"].shape == (256, 256) and sizes["gpt-ln"]["head.weight"].shape == (65, 256)
    assert "positions" not in sizes["llama"] and sizes["llama"]["blocks.0.attention.key.weight"].shape == (128, 256)


def test_adam_decays_as_torch_does() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(2, 6), torch.randn(5, 2, 6)
    theirs = [start[:, :4].clone().requires_grad_(), start[:, 4:].clone().requires_grad_()]
    groups = [{"params": [theirs[0]], "weight_decay": 0.1}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.05)
    ours = start.clone()
    optimizer = DecayingAdam([ours], torch.tensor([0.1] * 4 + [0.0] * 2))
    for gradient in gradients:
        theirs[0].grad, theirs[1].grad = gradient[:, :4], gradient[:, 4:]
        reference.step()
        optimizer.step([gradient], torch.tensor(0.05))
    torch.testing.assert_close(ours, torch.cat([p.detach() for p in theirs], 1))


def test_vectors_do_not_decay() -> None:
    torch.manual_seed(0)
    method = AdamW(rate=1e-9, weight_decay=1e8, epochs=1, batch_size=8, schedule="constant")
    model = coset.zoo.build("mlp:4-3-2")
    split = Split(torch.randn(8, 4), torch.arange(8) % 2)
    (short,) = coset.fit(model, split, method)
    (plain,) = coset.fit(model, split, AdamW(rate=1e-9, weight_decay=0.0, epochs=1, batch_size=8, schedule="constant"))
    for name, x in plain.mean.items():
        factor = 1.0 if x.ndim == 1 else 0.9
        torch.testing.assert_close(short.mean[name], factor * x, atol=1e-6, rtol=1e-5)
