"""Building by name: every form of a spec, and every sentence a bad one gets."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coset.core.errors import ModelError
from coset.zoo import (
    BUILTINS,
    GPT,
    MLP,
    GoogLeNet,
    ResNet,
    TinyTen,
    ViT,
    build,
    example_input,
    is_builtin,
    is_import_path,
)

FACTORIES = """
from torch import nn
number = 3
def nothing(): return None
def fails(): raise RuntimeError("first line.\\nsecond line")
def linear(spec=0, arguments=0): return nn.Linear(4, 2)
class Nets:
    small = nn.Identity
def __getattr__(name):
    if name == "lazy": raise ImportError("needs a library")
    raise AttributeError(name)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module of model factories, good and bad."""
    (tmp_path / "zoo_test_factories.py").write_text(FACTORIES)
    (tmp_path / "zoo_test_broken.py").write_text("1 / 0")
    (tmp_path / "mlp.py").write_text("raise AssertionError('built-in names must win')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return "zoo_test_factories"


def test_builtin_specs() -> None:
    mlp = build("mlp:784-32-16-10")
    assert isinstance(mlp, MLP) and mlp.sizes == (784, 32, 16, 10)
    mlp = build("mlp:4-3-2,activation=gelu,bias=false")
    assert isinstance(mlp, MLP) and isinstance(mlp.activation, nn.GELU) and mlp.layers[0].bias is None
    net = build("resnet20:width=2,norm=frn")
    assert isinstance(net, ResNet) and net.stem.out_channels == 32 and net.stem_norm.weight.shape == (32,)
    assert isinstance(build("resnet32"), ResNet)
    assert isinstance(build("tinyten"), TinyTen)
    assert isinstance(build("googlenet:width=0.125"), GoogLeNet)
    vit = build("vit:dim=32,depth=3")
    assert isinstance(vit, ViT) and len(vit.blocks) == 3 and vit.head.in_features == 32
    gpt = build("gpt:rope=true,kv_heads=2,swiglu=true")
    assert isinstance(gpt, GPT) and gpt.positions is None
    assert gpt.blocks[0].attention.key.out_features == 32


def test_none_is_a_norm_and_null_is_nothing() -> None:
    net = build("resnet20:norm=none")
    assert isinstance(net, ResNet) and isinstance(net.stem_norm, nn.Identity)
    assert isinstance(build("gpt:kv_heads=null"), GPT)


def test_arguments_as_dict_and_keywords() -> None:
    net = build("resnet20:norm=ln", {"classes": 7}, width=0.25)
    assert isinstance(net, ResNet) and net.head.weight.shape == (7, 16)
    mlp = build("mlp", sizes=[3, 2])
    assert isinstance(mlp, MLP) and mlp.sizes == (3, 2)


def test_module_factory(factories: str) -> None:
    layer = build("torch.nn:Linear", {"in_features": 3, "out_features": 2})
    assert isinstance(layer, nn.Linear) and layer.in_features == 3
    assert isinstance(build(f"{factories}:Nets.small"), nn.Identity)
    assert isinstance(build(f"{factories}:linear", spec=1, arguments=2), nn.Linear)


def test_builtin_names_win_over_modules(factories: str) -> None:
    assert isinstance(build("mlp:3-2"), MLP)
    with pytest.raises(ModelError, match="Model 'mlp:factory': cannot read the sizes"):
        build("mlp:factory")


NAMES = "mlp, resnet20, resnet32, tinyten, googlenet, vit, gpt"


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("", {}, f"Unknown model '': give {NAMES} or an import path module:factory."),
        (
            "resnt20",
            {},
            "Unknown model 'resnt20' (did you mean resnet20 or resnet32?): "
            f"give {NAMES} or an import path module:factory.",
        ),
        (
            "tinytin:classes=3",
            {},
            "Unknown model 'tinytin:classes=3' (did you mean tinyten?): "
            f"give {NAMES} or an import path module:factory.",
        ),
        (".local:net", {}, f"Unknown model '.local:net': give {NAMES} or an import path module:factory."),
        (
            "vit:dim=8,dept=2",
            {},
            "Model 'vit' has no option 'dept' (did you mean depth?): "
            "it takes dim, depth, heads, patch, image_size, in_channels, classes, pool, hidden.",
        ),
        ("tinyten", {"xyz": 1}, "Model 'tinyten' has no option 'xyz': it takes in_channels, classes."),
        ("resnet20:width=wide", {}, "Model 'resnet20': width must be float, got 'wide'."),
        ("resnet20:width=true", {}, "Model 'resnet20': width must be float, got True."),
        ("vit:dim=8.5", {}, "Model 'vit': dim must be int, got 8.5."),
        ("gpt:rope=1", {}, "Model 'gpt': rope must be bool, got 1."),
        ("gpt:kv_heads=two", {}, "Model 'gpt': kv_heads must be int | None, got 'two'."),
        ("resnet20:norm=3", {}, "Model 'resnet20': norm must be str, got 3."),
        ("vit", {"dim": None}, "Model 'vit': dim must be int, got None."),
        ("mlp", {"sizes": 3}, "Model 'mlp': sizes must be collections.abc.Sequence[int], got 3."),
        ("mlp", {"sizes": "3-2"}, "MLP: sizes must be two or more positive integers, got '3-2'."),
        ("mlp", {}, "Model 'mlp' needs sizes."),
        ("mlp:784", {}, "MLP: sizes must be two or more positive integers, got [784]."),
        ("mlp:784-0-10", {}, "MLP: sizes must be two or more positive integers, got [784, 0, 10]."),
        ("mlp:784x10", {}, "Model 'mlp:784x10': cannot read the sizes, write for example mlp:784-512-10."),
        ("mlp:", {}, "Model 'mlp:': cannot read the sizes, write for example mlp:784-512-10."),
        ("resnet20:", {}, "Model 'resnet20:': cannot read '', write key=value."),
        ("resnet20:width", {}, "Model 'resnet20:width': cannot read 'width', write key=value."),
        ("resnet20:width=", {}, "Model 'resnet20:width=': cannot read 'width=', write key=value."),
        ("resnet20:width=1,width=2", {}, "Model 'resnet20:width=1,width=2': given twice: width."),
        ("resnet20:width=1", {"width": 2}, "Model 'resnet20:width=1': given twice: width."),
        ("resnet20:norm=batch", {}, "ResNet: norm must be one of bn, frn, ln, gn, none, got 'batch'."),
        ("resnet20:width=1e400", {}, "ResNet: width must be positive, got inf."),
        (
            "no_such_package:net",
            {},
            "Cannot import 'no_such_package': ModuleNotFoundError: No module named 'no_such_package'.",
        ),
        (
            "tinytin:net",
            {},
            "Cannot import 'tinytin' (did you mean tinyten?): ModuleNotFoundError: No module named 'tinytin'.",
        ),
        ("zoo_test_broken:net", {}, "Cannot import 'zoo_test_broken': ZeroDivisionError: division by zero."),
        (
            "zoo_test_factories:linaer",
            {},
            "Module 'zoo_test_factories' has no 'linaer' (did you mean linear?).",
        ),
        ("zoo_test_factories:Nets.big", {}, "Module 'zoo_test_factories' has no 'Nets.big'."),
        (
            "zoo_test_factories:lazy",
            {},
            "Cannot import 'lazy' from 'zoo_test_factories': ImportError: needs a library.",
        ),
        (
            "zoo_test_factories:number",
            {},
            "'zoo_test_factories:number' has type int: name a function or class that makes a model.",
        ),
        (
            "zoo_test_factories:nothing",
            {},
            "'zoo_test_factories:nothing' returned a value of type NoneType, not a torch.nn.Module.",
        ),
        (
            "zoo_test_factories:fails",
            {},
            "Model 'zoo_test_factories:fails' cannot be built: RuntimeError: first line.",
        ),
        (
            "zoo_test_factories:nothing",
            {"x": 1},
            "Model 'zoo_test_factories:nothing' cannot be built: "
            "TypeError: nothing() got an unexpected keyword argument 'x'.",
        ),
    ],
)
def test_error_sentences(factories: str, spec: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(spec, arguments)
    assert str(caught.value) == message


def test_dict_and_keyword_conflict() -> None:
    with pytest.raises(ModelError, match="Model 'tinyten': given twice: classes"):
        build("tinyten", {"classes": 2}, classes=3)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, '{"a":' * 100_000])
def test_values_that_are_no_json_are_texts(value: str) -> None:
    with pytest.raises(ModelError, match="depth must be int, got '"):
        build(f"gpt:depth={value}")


@pytest.mark.parametrize("name", BUILTINS)
def test_example_input_of_every_builtin(name: str) -> None:
    spec = {"mlp": "mlp:5-3", "googlenet": "googlenet:width=0.0625"}.get(name, name)
    (x,) = example_input(spec, batch=3)
    assert x.shape[0] == 3
    assert x.dtype == (torch.long if name == "gpt" else torch.float32)
    (again,) = example_input(build(spec), batch=3)
    assert again.shape == x.shape


def test_example_input_of_a_foreign_model() -> None:
    with pytest.raises(ModelError, match="Linear has no method example_inputs: give example inputs"):
        example_input(nn.Linear(2, 2))


def test_which_specs_run_code_of_others() -> None:
    assert all(is_builtin(spec) for spec in (*BUILTINS, "mlp:3-2", "resnet20:width=2"))
    assert not any(is_builtin(spec) for spec in ("", ":", "os:system", "coset.zoo:MLP", "mlp.nets:make", " mlp", "MLP"))
    assert all(is_import_path(spec) for spec in ("os:system", "coset.zoo:MLP", "mlp.nets:Nets.make"))
    assert not any(is_import_path(spec) for spec in ("mlp", "mlp:make", "nets", "nets:", ":make", "../nets:make", ""))
