"""Reference networks of the papers as plain modules, and `build` to make them by name."""

from coset.zoo.googlenet import GoogLeNet
from coset.zoo.gpt import GPT
from coset.zoo.layers import ChannelLayerNorm, FilterResponseNorm, ThresholdedLinearUnit, make_activation, make_norm
from coset.zoo.mlp import MLP
from coset.zoo.registry import BUILTINS, build, example_input, is_builtin, is_import_path
from coset.zoo.resnet import ResNet, resnet20, resnet32
from coset.zoo.tinyten import TinyTen
from coset.zoo.vit import ViT

__all__ = [
    "BUILTINS",
    "GPT",
    "MLP",
    "ChannelLayerNorm",
    "FilterResponseNorm",
    "GoogLeNet",
    "ResNet",
    "ThresholdedLinearUnit",
    "TinyTen",
    "ViT",
    "build",
    "example_input",
    "is_builtin",
    "is_import_path",
    "make_activation",
    "make_norm",
    "resnet20",
    "resnet32",
]
