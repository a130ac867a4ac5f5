"""Feed-forward and convolutional nets."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, conv, family, image, lin, par, seq
from torch import Tensor, nn

from coset import zoo


@family("4 5")
def mlp() -> Sample:
    return seq(lin(3, 4), nn.ReLU(), lin(4, 5), nn.Tanh(), lin(5, 2)), (torch.randn(4, 3),)


def _resnet(norm: str, blocks: int = 1) -> Sample:
    return zoo.ResNet(blocks, 0.25, norm, 3, 2), (image(3, 8),)


for _norm in ("bn", "frn", "ln", "none"):
    add(f"resnet_{_norm}", "4*2 8*2 16*2", lambda _norm=_norm: _resnet(_norm))
    add(f"resnet20_{_norm}", "4*4 8*4 16*4", lambda _norm=_norm: _resnet(_norm, 3), slow=True)
# Group norm by 4 of 4 (instance norm), 8 of 8, and 8 groups of 2.
add("resnet_gn", "4*2 8*2 8*2 2/8*2", lambda: _resnet("gn"))
add("resnet20_gn", "4*4 8*4 8*4 2/8*4", lambda: _resnet("gn", 3), slow=True)


@family("4 2*2 3*2 5")
def googlenet_like() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(m.stem(x)), 2)
        x = torch.cat([F.relu(m.one(x)), F.relu(m.three(F.relu(m.reduce(x)))), m.proj(F.max_pool2d(x, 3, 1, 1))], 1)
        return m.head(F.relu(m.mix(F.avg_pool2d(x, 2, 1))).flatten(1))

    parts = {
        "stem": conv(3, 4, 3, padding=1),
        "one": conv(4, 2, 1),
        "reduce": conv(4, 3, 1),
        "three": conv(3, 3, 3, padding=1),
        "proj": conv(4, 2, 1),
        "mix": conv(7, 5, 1),
        "head": lin(5 * 4, 2),
    }
    return Net(forward, **parts), (image(),)


add("googlenet_zoo", None, lambda: (zoo.GoogLeNet(), (torch.randn(2, 3, 32, 32),)), slow=True)


@family("4 5 6")
def conv_flatten_after_concat() -> Sample:
    """The flattened axis is a concatenation of products."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.head(F.relu(m.mid(torch.cat([F.relu(m.p(x)), F.relu(m.q(x))], 1).flatten(1))))

    return Net(forward, p=conv(3, 4, 3), q=conv(3, 5, 3), mid=lin(9 * 16, 6), head=lin(6, 2)), (image(),)


def _padded_shortcut() -> Sample:
    """ResNet with parameter-free shortcuts: every other position, channels padded with zeros."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        y = m.bn2(m.conv2(F.relu(m.bn1(m.conv1(x)))))
        x = F.gelu(y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        return m.head(x.mean((2, 3)))

    return Net(
        forward,
        stem=conv(3, 4, 3, padding=1),
        conv1=conv(4, 5, 3, 2, 1, bias=False),
        bn1=nn.BatchNorm2d(5),
        conv2=conv(5, 8, 3, 1, 1, bias=False),
        bn2=nn.BatchNorm2d(8),
        head=lin(8, 2),
    ), (image(),)


add("resnet_option_a", "4 2*2 5", _padded_shortcut)


def _inverted_residual(act: type[nn.Module], gate: type[nn.Module] | None) -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.act(m.bn0(m.stem(x)))
        y = m.act(m.bn2(m.dw(m.act(m.bn1(m.expand(x))))))
        if gate is not None:
            y = y * m.gate(m.se2(m.act(m.se1(F.adaptive_avg_pool2d(y, 1)))))
        x = x + m.bn3(m.project(y))
        return m.fc(m.act(m.last(x)).mean((2, 3)))

    parts = {
        "stem": conv(3, 4, 3, 2, 1, bias=False),
        "expand": conv(4, 6, 1, bias=False),
        "dw": conv(6, 6, 3, padding=1, groups=6, bias=False),
        "project": conv(6, 4, 1, bias=False),
        "last": conv(4, 5, 1),
        "fc": lin(5, 2),
        "act": act(),
        **{f"bn{k}": nn.BatchNorm2d(n) for k, n in enumerate((4, 6, 6, 4))},
    }
    if gate is not None:
        parts |= {"se1": conv(6, 3, 1), "se2": conv(3, 6, 1), "gate": gate()}
    return Net(forward, **parts), (image(3, 8),)


add("mobilenet_v2", "4 5 6", lambda: _inverted_residual(nn.ReLU6, None))
add("mobilenet_v3", "3 4 5 6", lambda: _inverted_residual(nn.Hardswish, nn.Hardsigmoid))
add("efficientnet", "3 4 5 6", lambda: _inverted_residual(nn.SiLU, nn.Sigmoid))


@family("4 6")
def convnext() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        x = m.norm0(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = m.norm(m.dw(x).permute(0, 2, 3, 1))
        y = m.gamma * m.down(F.gelu(m.up(y)))
        return m.head(m.norm2((x + y.permute(0, 3, 1, 2)).mean((-2, -1))))

    return Net(
        forward,
        stem=conv(3, 4, 2, 2),
        norm0=nn.LayerNorm(4),
        dw=conv(4, 4, 3, padding=1, groups=4),
        norm=nn.LayerNorm(4),
        up=lin(4, 6),
        down=lin(6, 4),
        gamma=par(4),
        norm2=nn.LayerNorm(4),
        head=lin(4, 2),
    ), (image(),)


@family("2 3 4 5")
def densenet() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        x = torch.cat([x, m.c1(F.relu(m.b1(x)))], 1)
        x = torch.cat([x, m.c2(F.relu(m.b2(x)))], 1)
        x = F.avg_pool2d(m.trans(F.relu(m.b3(x))), 2)
        return m.head(F.relu(x).mean((2, 3)))

    return Net(
        forward,
        stem=conv(3, 4, 3),
        b1=nn.BatchNorm2d(4),
        c1=conv(4, 2, 3, padding=1),
        b2=nn.BatchNorm2d(6),
        c2=conv(6, 3, 3, padding=1),
        b3=nn.BatchNorm2d(9),
        trans=conv(9, 5, 1),
        head=lin(5, 2),
    ), (image(),)


def _shuffle(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def _shuffle_unit(n: int) -> nn.Module:
    return seq(
        conv(n, n, 1, bias=False),
        nn.BatchNorm2d(n),
        nn.ReLU(),
        conv(n, n, 3, padding=1, groups=n, bias=False),
        nn.BatchNorm2d(n),
        conv(n, n, 1),
        nn.ReLU(),
    )


def _shufflenet(units: int, shuffle: Callable[[Tensor], Tensor] = _shuffle) -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        for unit in m.units:
            first, second = x.chunk(2, 1)
            x = shuffle(torch.cat([first, unit(second)], 1))
        return m.fc(F.relu(m.head(x)).mean((2, 3)))

    width = 4 * units
    units_ = nn.ModuleList([_shuffle_unit(width // 2) for _ in range(units)])
    return Net(forward, stem=conv(3, width, 3), units=units_, head=conv(width, 3, 1), fc=lin(3, 2)), (image(),)


add("shufflenet_one", "2*4 3", lambda: _shufflenet(1))
add("shufflenet_two", "2*4 4*4 3", lambda: _shufflenet(2))
add("channel_shuffle_module", "2*4 3", lambda: _shufflenet(1, nn.ChannelShuffle(2)))


@family("4 2")
def pixel_shuffle() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.last(F.relu(F.pixel_shuffle(m.up(F.relu(m.first(x))), 2)))

    return Net(forward, first=conv(3, 4, 3), up=conv(4, 8, 3), last=conv(2, 1, 3)), (image(),)


@family("4 2")
def pixel_unshuffle() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.last(F.relu(m.mid(F.pixel_unshuffle(F.relu(m.first(x)), 2))))

    return Net(forward, first=conv(3, 4, 3), mid=conv(16, 2, 1), last=conv(2, 1, 1)), (image(),)


@family("2 2/2 3/2")
def grouped_conv() -> Sample:
    return seq(conv(3, 4, 3), nn.ReLU(), conv(4, 6, 3, groups=2), nn.ReLU(), conv(6, 2, 1)), (image(),)


@family("2 2/2 3/2")
def grouped_transposed_conv() -> Sample:
    return seq(conv(3, 4, 3), nn.GELU(), nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.GELU(), conv(6, 2, 1)), (image(),)


@family("5 2 2/2 3/2")
def resnext() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        y = F.relu(m.b2(m.c2(F.relu(m.b1(m.c1(x))))))
        return m.head(F.relu(x + m.c3(y)).mean((2, 3)))

    return Net(
        forward,
        stem=conv(3, 5, 3),
        c1=conv(5, 4, 1, bias=False),
        b1=nn.BatchNorm2d(4),
        c2=conv(4, 6, 3, padding=1, groups=2, bias=False),
        b2=nn.BatchNorm2d(6),
        c3=conv(6, 5, 1),
        head=lin(5, 2),
    ), (image(),)


@family("4 2/4")
def depthwise_multiplier() -> Sample:
    """Two filters a channel: the pairs of outputs are (channel, filter), fibred."""
    return seq(conv(3, 4, 3), nn.ReLU(), conv(4, 8, 3, groups=4), nn.ReLU(), conv(8, 2, 1)), (image(),)


@family(None)
def grouped_convs_at_odds() -> Sample:
    """Channels in 2 groups of 3, then in 3 groups of 2: whatever is found must be right."""
    layers = [conv(3, 4, 3), nn.ReLU(), conv(4, 6, 1, groups=2), nn.ReLU(), conv(6, 6, 1, groups=3), nn.ReLU()]
    return seq(*layers, conv(6, 2, 1)), (image(),)


@family("4")
def instance_norm() -> Sample:
    return seq(conv(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.GELU(), conv(4, 2, 1)), (image(),)


@family("4")
def instance_norm_tracked() -> Sample:
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return seq(conv(3, 4, 3), norm, nn.GELU(), conv(4, 2, 1)), (image(),)


@family("4 5")
def conv1d_and_3d() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.max_pool1d(F.relu(m.bn(m.c1(x))), 2)
        return m.out(F.adaptive_max_pool3d(F.relu(m.c3(y[:, :, :, None, None])), (2, 1, 1)).flatten(1))

    net = Net(forward, c1=nn.Conv1d(3, 4, 3), bn=nn.BatchNorm1d(4), c3=nn.Conv3d(4, 5, 1), out=lin(10, 2))
    return net, (torch.randn(2, 3, 10),)


@family("2 2 3 2/3")
def unet_straddling() -> Sample:
    """The last group norm has groups of 3 over (2 up, 4 skip): its border goes through the skip connection.

    Skip channel 0 is alone in its group with the up channels, 1 shares the first norm's group with 0, and
    2 and 3 may swap.
    """

    def forward(m: Net, x: Tensor, t: Tensor) -> Tensor:
        skip = m.stem(x)
        y = F.silu(m.gn2(m.down(F.silu(m.gn1(skip))) + m.time(t)[:, :, None, None]))
        y = torch.cat([m.up(y), skip], 1)
        return m.out(F.silu(m.gn3(y)))

    return Net(
        forward,
        stem=conv(1, 4, 3, padding=1),
        gn1=nn.GroupNorm(2, 4),
        down=conv(4, 6, 3, 2, 1),
        time=lin(3, 6),
        gn2=nn.GroupNorm(3, 6),
        up=nn.ConvTranspose2d(6, 2, 2, 2),
        gn3=nn.GroupNorm(2, 6),
        out=conv(6, 1, 3, padding=1),
    ), (image(1), torch.randn(2, 3))


@family("2*2 2/2*2 3*2 2/3 5")
def unet_aligned() -> Sample:
    def forward(m: Net, x: Tensor, t: Tensor) -> Tensor:
        skip = m.stem(x)
        time = m.time2(F.silu(m.time(t)))[:, :, None, None]
        y = F.silu(m.gn2(m.down(F.silu(m.gn1(skip))) + time))
        y = m.up(F.interpolate(y, scale_factor=2, mode="nearest"))
        y = F.silu(m.gn3(torch.cat([y, skip], 1)))
        return m.out(F.gelu(m.mix(y)))

    return Net(
        forward,
        stem=conv(1, 4, 3, padding=1),
        gn1=nn.GroupNorm(2, 4),
        down=conv(4, 6, 3, 2, 1),
        time=lin(3, 5),
        time2=lin(5, 6),
        gn2=nn.GroupNorm(3, 6),
        up=conv(6, 4, 3, padding=1),
        gn3=nn.GroupNorm(4, 8),
        mix=conv(8, 3, 1),
        out=conv(3, 1, 1),
    ), (image(1), torch.randn(2, 3))
