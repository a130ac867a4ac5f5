"""The unit that TinyTen and GoogLeNet are made of."""

from torch import nn


def conv_bn_relu(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """Convolution, batch norm, ReLU; no convolution bias, since batch norm would cancel it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
