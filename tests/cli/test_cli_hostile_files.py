"""`coset align`, `apply`, `merge` and `barrier` in hostile hands. Known failures are marked, each with its cause."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import Result

import coset
from coset import zoo
from coset.core import state as states
from coset.core.checkpoint import INDEX, load_state, save_state
from coset.core.files import write_json
from coset.symmetries.verify import generic

Run = Callable[..., Result]
State = dict[str, Tensor]
NET = ("--model", "hostile_nets:net", "--input", "3x4")

NETS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
    def forward(self, x):
        return self.net(x.float())

class Masked(Casts):
    def forward(self, x):
        y = self.net(x)
        return y, y > 0

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight
    def forward(self, x):
        return self.out(torch.relu(self.hidden(self.embedding(x))))
"""


@pytest.fixture
def pair(folder: Path) -> tuple[State, State]:
    """a.safetensors and b.safetensors of hostile_nets:net."""
    (folder / "hostile_nets.py").write_text(NETS)
    return written("hostile_nets:net", folder)


def written(spec: str, folder: Path) -> tuple[State, State]:
    import sys

    sys.path.insert(0, str(folder))
    sys.modules.pop("hostile_nets", None)
    model = zoo.build(spec)
    a, b = (generic(states.of(model), torch.Generator().manual_seed(k)) for k in (1, 2))
    save_state(a, folder / "a.safetensors")
    save_state(b, folder / "b.safetensors")
    return a, b


def shards(state: State, folder: Path) -> Path:
    """The state in two files with an index."""
    folder.mkdir()
    files = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    names = list(state)
    for k, file in enumerate(files):
        save_state({name: state[name] for name in names[2 * k : 2 * k + 2]}, folder / file)
    write_json(folder / INDEX, {"weight_map": {name: files[k // 2] for k, name in enumerate(names)}})
    return folder


def deviation(image: State, state: State) -> float:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    return float((states.call(model, image, (x,)) - states.call(model, state, (x,))).abs().max())


# What holds.


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_to_an_input_are_not_written(run: Run, folder: Path, pair: object, link: Callable[..., None]) -> None:
    link("b.safetensors", "link.safetensors")
    before = (folder / "b.safetensors").read_bytes()
    result = run("align", "a.safetensors", "b.safetensors", *NET, "-o", "./link.safetensors")
    assert result.exit_code == 2 and "never overwritten" in result.stderr
    assert (folder / "b.safetensors").read_bytes() == before


def test_json_is_pure_and_extra_tensors_are_carried(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    extra = {"step": torch.tensor(3), "ema": torch.tensor(0.5), "flag": torch.tensor(True)}
    save_state({**pair[1], **extra}, folder / "b.safetensors")
    result = run("align", "a.safetensors", "b.safetensors", *NET, "-o", "out.safetensors", "--json")
    assert json.loads(result.stdout)["output_change"] < 1e-9
    assert load_state(folder / "out.safetensors")["step"] == 3


def test_a_checkpoint_with_itself(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    assert run("align", "a.safetensors", "a.safetensors", *NET, "-o", "out.safetensors").exit_code == 0
    assert states.allclose(load_state(folder / "out.safetensors"), pair[0])


# What does not.


@pytest.mark.parametrize("names", [("out.element", "b"), ("a", "out.element")])
def test_the_element_does_not_overwrite_an_input(run: Run, folder: Path, pair: object, names: tuple[str, str]) -> None:
    for old, new in zip("ab", names, strict=True):
        (folder / f"{old}.safetensors").rename(folder / f"{new}.safetensors")
    before = (folder / "out.element.safetensors").read_bytes()
    run("align", *(f"{name}.safetensors" for name in names), *NET, "-o", "out.safetensors")
    assert (folder / "out.element.safetensors").read_bytes() == before


@pytest.mark.parametrize("command", ["align", "merge", "apply", "apply-index"])
def test_shards_of_an_input_are_not_overwritten(
    run: Run, folder: Path, pair: tuple[State, State], command: str
) -> None:
    run("align", "a.safetensors", "b.safetensors", *NET, "-o", "first.safetensors")
    source = shards(pair[1], folder / "shards")
    target = source / "model-00001-of-00002.safetensors"
    before = target.read_bytes()
    words: dict[str, tuple[object, ...]] = {
        "align": ("align", "a.safetensors", source, *NET),
        "merge": ("merge", "a.safetensors", source, *NET),
        "apply": ("apply", "first.element.safetensors", source),
        "apply-index": ("apply", "first.element.safetensors", source / INDEX),
    }
    run(*words[command], "-o", target)
    assert target.read_bytes() == before


def test_a_wrong_symmetry_is_found_out_where_there_is_a_model(
    run: Run, folder: Path, pair: tuple[State, State]
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    spec = json.loads(coset.symmetry(model, (torch.randn(3, 4),)).to_json())
    spec["tensors"]["2.weight"], spec["scalings"] = [2, 8], {}
    (folder / "wrong.json").write_text(json.dumps(spec))
    result = run("align", "a.safetensors", "b.safetensors", *NET, "--symmetry", "wrong.json", "-o", "out.safetensors")
    assert result.exit_code == 2 or deviation(load_state(folder / "out.safetensors"), pair[1]) < 1e-4


def test_nothing_is_written_when_the_element_cannot_be(run: Run, folder: Path, pair: object) -> None:
    (folder / "out.element.safetensors").mkdir()
    assert run("align", "a.safetensors", "b.safetensors", *NET, "-o", "out.safetensors").exit_code == 2
    assert not (folder / "out.safetensors").exists()


def test_folders_may_have_dots(run: Run, folder: Path, pair: tuple[State, State]) -> None:
    source = shards(pair[1], folder / "shards")
    assert run("align", "a.safetensors", source, *NET, "-o", "llama-3.1-aligned").exit_code == 0


@pytest.mark.parametrize("name", ["Casts", "Masked"])
def test_models_that_the_check_must_cope_with(run: Run, folder: Path, pair: object, name: str) -> None:
    written(f"hostile_nets:{name}", folder)
    net = ("--model", f"hostile_nets:{name}", "--input", "3x4")
    assert run("align", "a.safetensors", "b.safetensors", *net, "-o", "out.safetensors").exit_code == 0


@pytest.mark.parametrize("command", ["align", "merge"])
def test_tied_tensors_stored_once(run: Run, folder: Path, pair: object, command: str) -> None:
    for name, state in zip("ab", written("hostile_nets:Tied", folder), strict=True):
        save_state({k: x for k, x in state.items() if k != "out.weight"}, folder / f"{name}.safetensors")
    net = ("--model", "hostile_nets:Tied", "--input", "3x4:int<11")
    assert run(command, "a.safetensors", "b.safetensors", *net, "-o", "out.safetensors").exit_code == 0


def test_merge_refuses_tied_tensors_that_differ(run: Run, folder: Path, pair: object) -> None:
    _, b = written("hostile_nets:Tied", folder)
    save_state({**b, "out.weight": b["out.weight"] + 1}, folder / "b.safetensors")
    net = ("--model", "hostile_nets:Tied", "--input", "3x4:int<11")
    assert run("merge", "a.safetensors", "b.safetensors", *net, "-o", "out.safetensors").exit_code == 2


def tampered(run: Run, folder: Path, change: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> Result:
    """Apply an element with other factors to b."""
    run("align", "a.safetensors", "b.safetensors", *NET, "--scale", "-o", "first.safetensors")
    with safe_open("first.element.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    changed = {name: change(x) if name.startswith("scale/") else x for name, x in tensors.items()}
    save_file(changed, "changed.safetensors", metadata)
    save_state(states.to(load_state("b.safetensors"), dtype=dtype), folder / "c.safetensors")
    return run("apply", "changed.safetensors", "c.safetensors", "-o", "out.safetensors")


@pytest.mark.parametrize("change", [lambda c: -c, lambda c: c[:3].clone(), lambda c: c.sum()])
def test_factors_that_are_none_are_refused(
    run: Run, folder: Path, pair: object, change: Callable[[Tensor], Tensor]
) -> None:
    result = tampered(run, folder, change)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)


def test_apply_writes_no_infinities(run: Run, folder: Path, pair: object) -> None:
    result = tampered(run, folder, lambda c: c * 1e6, torch.float16)
    assert result.exit_code == 2 or all(bool(x.isfinite().all()) for x in load_state("out.safetensors").values())


@pytest.mark.parametrize(
    "words",
    [
        ("align", "a.safetensors", "b.safetensors", *NET, "--device", "meta", "-o", "out.safetensors"),
        ("align", "a.safetensors", "b.safetensors", *NET, "--seed", 2**70, "-o", "out.safetensors"),
        ("align", "a.safetensors", "b.safetensors", *NET, "-o", "x" * 300 + ".safetensors"),
        ("align", "x" * 300, "b.safetensors", *NET, "-o", "out.safetensors"),
    ],
    ids=["meta", "seed", "long output", "long input"],
)
def test_bad_words_get_a_sentence(run: Run, folder: Path, pair: object, words: tuple[object, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "words",
    [
        ("merge", "a.safetensors", "b.safetensors", *NET, "--data", "digits", "-o", "out.safetensors"),
        ("barrier", "a.safetensors", "b.safetensors", *NET, "--data", "digits", "--points", 2),
    ],
    ids=["merge", "barrier"],
)
def test_data_that_do_not_fit_get_a_sentence(run: Run, folder: Path, pair: object, words: tuple[object, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert not (folder / "out.safetensors").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_barrier_at_other_dtypes(run: Run, folder: Path, dtype: torch.dtype) -> None:
    model = zoo.build("mlp:64-8-10")
    for seed, name in enumerate("ab"):
        state = generic(states.of(model), torch.Generator().manual_seed(seed))
        save_state(states.to(state, dtype=dtype), folder / f"{name}.safetensors")
    words = ("--model", "mlp:64-8-10", "--data", "digits", "--points", 2)
    assert run("barrier", "a.safetensors", "b.safetensors", *words).exit_code == 0
