"""Every net of the zoo: published sizes, shapes, gradients, tracing, seeds."""

import numpy as np
import pytest
import torch
from torch import nn

from coset.core.errors import ModelError
from coset.zoo import GPT, MLP, GoogLeNet, ResNet, TinyTen, ViT, build, example_input, resnet20, resnet32

# Small versions: one of each structure.
SMALL = [
    "mlp:12-8-7-5",
    "mlp:12-8-5,activation=tanh,bias=false",
    "resnet20:width=0.25",
    "resnet20:width=0.25,norm=frn",
    "resnet20:width=0.25,norm=ln",
    "resnet20:width=0.5,norm=gn",
    "resnet20:width=0.25,norm=none",
    "resnet32:width=0.25",
    "tinyten",
    "googlenet:width=0.0625",
    "vit:dim=16,depth=2,heads=2,patch=8",
    "vit:dim=16,depth=2,heads=2,patch=8,pool=mean",
    "gpt:dim=16",
    "gpt:dim=16,kv_heads=1,tied=false",
    "gpt:dim=24,rope=true,kv_heads=2,swiglu=true,norm=rms",
]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet_sizes_are_the_published_ones() -> None:
    # He et al. 2016 Table 6: 0.27 M and 0.46 M with identity shortcuts (269,722 and 464,154 exactly);
    # the two 1x1 projections add 16*32 + 32*64 weights and their batch norms 2*32 + 2*64.
    projections = 16 * 32 + 32 * 64 + 2 * 32 + 2 * 64
    assert count(resnet20()) == 269_722 + projections
    assert count(resnet32()) == 464_154 + projections


def test_other_norms_change_the_size_as_they_should() -> None:
    base = count(resnet20(norm="bn"))
    assert count(resnet20(norm="ln")) == count(resnet20(norm="gn")) == base
    trunk = 16 * 7 + 32 * 6 + 64 * 6  # channels after every 3x3 convolution: a threshold each
    assert count(resnet20(norm="frn")) == base + trunk
    projections = 32 + 64
    assert count(resnet20(norm="none")) == base - trunk - projections  # a bias for scale and shift


def test_tinyten_size() -> None:
    kernels = 9 * (3 * 16 + 16 * 16 + 16 * 32 + 2 * 32 * 32 + 32 * 64 + 64 * 64) + 64 * 64
    norms = 2 * (2 * 16 + 3 * 32 + 3 * 64)
    assert count(TinyTen()) == kernels + norms + 64 * 10 + 10 == 86_458


def test_googlenet_size() -> None:
    net = GoogLeNet()
    # The usual CIFAR GoogLeNet (github.com/kuangliu/pytorch-cifar) has 6,166,250 parameters with a
    # redundant bias on every convolution.
    biases = sum(m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d))
    assert count(net) + biases == 6_166_250


def test_mlp_size() -> None:
    assert count(build("mlp:784-512-512-512-10")) == 785 * 512 + 2 * 513 * 512 + 513 * 10


@pytest.mark.parametrize("spec", SMALL)
def test_traces_and_reaches_every_parameter(spec: str) -> None:
    torch.manual_seed(0)
    model = build(spec)
    inputs = example_input(model, batch=3)
    model(*inputs).square().sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
    model.eval()
    exported = torch.export.export(model, inputs, strict=False)
    torch.testing.assert_close(exported.module()(*inputs), model(*inputs))


@pytest.mark.parametrize("spec", SMALL)
def test_same_seed_same_weights(spec: str) -> None:
    torch.manual_seed(3)
    first = build(spec).state_dict()
    torch.manual_seed(3)
    second = build(spec).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("spec", SMALL)
def test_example_inputs_come_from_the_generator(spec: str) -> None:
    model = build(spec)
    samples = [model.example_inputs(4, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert all(torch.equal(a, b) and len(a) == 4 for a, b in zip(*samples, strict=True))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (resnet20(width=0.25, in_channels=1, classes=7), (1, 28, 28)),
        (TinyTen(in_channels=1, classes=7), (1, 28, 28)),
        (GoogLeNet(width=0.0625, in_channels=1, classes=7), (1, 28, 28)),
        (ViT(dim=16, depth=1, heads=2, patch=7, image_size=28, in_channels=1, classes=7), (1, 28, 28)),
        (MLP([784, 8, 7]), (1, 28, 28)),
    ],
    ids=["resnet20", "tinyten", "googlenet", "vit", "mlp"],
)
def test_gray_images_and_other_class_counts(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert model(torch.randn(2, *shape)).shape == (2, 7)


def shapes_of(model: nn.Module, modules: nn.Sequential) -> list[tuple[int, ...]]:
    """Shape of each module's output on the model's example input, without the batch dimension."""
    sizes_seen: list[tuple[int, ...]] = []
    for module in modules:
        module.register_forward_hook(lambda _module, _inputs, output: sizes_seen.append(tuple(output.shape[1:])))
    model(*example_input(model))
    return sizes_seen


def test_resnet_stages() -> None:
    net = resnet32(width=0.5)
    assert shapes_of(net, net.stages) == [(8, 32, 32), (16, 16, 16), (32, 8, 8)]
    assert [len(stage) for stage in net.stages] == [5, 5, 5]
    assert [len(stage) for stage in resnet20().stages] == [3, 3, 3]


def test_resnet_block_adds_its_shortcut_before_the_last_activation() -> None:
    net = resnet20(width=0.25, norm="none")
    block = net.stages[0][0]
    with torch.no_grad():
        for p in block.parameters():
            p.zero_()
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(block(x), x.relu())


def test_tinyten_feature_maps() -> None:
    net = TinyTen()
    assert shapes_of(net, net.features) == [
        (16, 32, 32),
        (16, 32, 32),
        (32, 16, 16),
        (32, 16, 16),
        (32, 16, 16),
        (64, 8, 8),
        (64, 6, 6),
        (64, 6, 6),
    ]


def test_googlenet_feature_maps() -> None:
    net = GoogLeNet(width=0.0625)
    shapes = shapes_of(net, net.blocks)
    assert [shape[0] for shape in shapes] == [16, 30, 30, 32, 32, 32, 33, 52, 52, 52, 64]
    assert [shape[1] for shape in shapes] == [32, 32, 16, 16, 16, 16, 16, 16, 8, 8, 8]


def test_mlp_equals_numpy() -> None:
    model = MLP([4, 6, 5, 3], activation="tanh")
    (x,) = model.example_inputs(7)
    a = x.numpy()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for i in range(3):
        a = a @ state[f"layers.{i}.weight"].T + state[f"layers.{i}.bias"]
        a = np.tanh(a) if i < 2 else a
    np.testing.assert_allclose(model(x).detach().numpy(), a, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP([3]), r"MLP: sizes must be two or more positive integers, got \[3\]"),
        (lambda: MLP([3, 0, 2]), "positive integers"),
        (lambda: MLP([3, 2], activation="step"), "activation must be one of relu, .*, got 'step'"),
        (lambda: ResNet(0), "ResNet: blocks must be positive, got 0"),
        (lambda: resnet20(width=-1), "width must be positive, got -1"),
        (lambda: resnet20(width=float("nan")), "width must be positive, got nan"),
        (lambda: resnet20(norm="batch"), "norm must be one of bn, .*, got 'batch'"),
        (lambda: TinyTen(classes=0), "classes must be positive"),
        (lambda: GoogLeNet(width=0), "width must be positive"),
        (lambda: ViT(dim=10, heads=4), "dim=10 must be a multiple of heads=4"),
        (lambda: ViT(patch=5), "image_size=32 must be a multiple of patch=5"),
        (lambda: ViT(pool="max"), "pool must be one of cls, mean, got 'max'"),
        (lambda: GPT(dim=10, heads=4), "dim=10 must be a multiple of heads=4"),
        (lambda: GPT(kv_heads=3), "heads=4 must be a multiple of kv_heads=3"),
        (lambda: GPT(kv_heads=0), "kv_heads must be positive"),
        (lambda: GPT(dim=12, heads=4, rope=True), "dim / heads=3 must be a multiple of RoPE pair=2"),
        (lambda: GPT(norm="bn"), "norm must be one of ln, rms, got 'bn'"),
    ],
)
def test_bad_arguments(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelError, match=message):
        make()
