"""Small nets of every family, each with example inputs and the groups it has, worked out by hand.

Expected groups are written as in :func:`oracle.expect`: ``"8 4 2/4*2"`` is one group of 8 units, one of 4, and two
of 2 units with an independent copy for each of 4 others. The sizes are chosen so that they tell the groups apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset import zoo

Sample = tuple[nn.Module, tuple[Any, ...]]


class Net(nn.Module):
    """A module from a function of itself and the inputs, with parts: modules, parameters, buffers."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


@dataclass(frozen=True)
class Family:
    """make: the net and its inputs. groups: what inference must find. log_order: where that alone is told.

    odd: made of ops that few nets have.
    """

    name: str
    make: Callable[[], Sample]
    groups: str | None
    log_order: float | None = None
    slow: bool = False
    odd: bool = False


FAMILIES: dict[str, Family] = {}


def family(groups: str | None, *, slow: bool = False) -> Callable[[Callable[[], Sample]], Callable[[], Sample]]:
    """Register a net under the name of the function that makes it."""

    def register(make: Callable[[], Sample]) -> Callable[[], Sample]:
        add(make.__name__, groups, make, slow=slow)
        return make

    return register


def add(
    name: str,
    groups: str | None,
    make: Callable[[], Sample],
    *,
    slow: bool = False,
    log_order: float | None = None,
    odd: bool = False,
) -> None:
    assert name not in FAMILIES, name
    FAMILIES[name] = Family(name, make, groups, log_order, slow, odd)


def simple(name: str, groups: str | None, function: Callable[..., Any], x: Tensor | None = None, **parts: Any) -> None:
    """A net of linear maps a (3 -> 4) and b (4 -> 2), and more, with a (3, 3) input."""
    log_order = parts.pop("log_order", None)

    def make() -> Sample:
        made = {
            k: part() if callable(part) and not isinstance(part, nn.Module | Tensor) else part
            for k, part in parts.items()
        }
        full = {"a": lin(3, 4), "b": lin(4, 2), **made}
        return Net(function, **full), (torch.randn(3, 3) if x is None else x,)

    add(name, groups, make, log_order=log_order, odd=True)


def par(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))


lin, conv, seq = nn.Linear, nn.Conv2d, nn.Sequential


def image(channels: int = 3, size: int = 6) -> Tensor:
    return torch.randn(2, channels, size, size)


# --- plain feed-forward and convolutional nets -------------------------------------------------------------


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
            left, right = x.chunk(2, 1)
            x = shuffle(torch.cat([left, unit(right)], 1))
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


# --- attention ---------------------------------------------------------------------------------------------


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _matmul_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def _heads(x: Tensor, heads: int) -> Tensor:
    b, n, c = x.shape
    return x.view(b, n, heads, c // heads).transpose(1, 2)


def _chunk(y: Tensor, h: int) -> list[Tensor]:
    return [_heads(part, h) for part in y.chunk(3, -1)]


def _split_sizes(y: Tensor, h: int) -> list[Tensor]:
    n = y.shape[-1] // 3
    return [_heads(part, h) for part in y.split([n, n, n], 2)]


def _three_heads_dim(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return list(y.reshape(b, n, 3, h, c // 3 // h).permute(2, 0, 3, 1, 4).unbind(0))


def _three_select(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, 3, h, c // 3 // h)
    return [y[:, :, k].transpose(1, 2) for k in range(3)]


def _three_chunk(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, 3, h, c // 3 // h).transpose(1, 3)
    return [part.squeeze(2) for part in y.chunk(3, 2)]


def _heads_three_dim_split(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    d = c // 3 // h
    return [part.transpose(1, 2) for part in y.reshape(b, n, h, 3 * d).split(d, -1)]


def _heads_three_dim_slices(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    d = c // 3 // h
    y = y.view(b, n, h, 3 * d)
    return [y[..., k * d : (k + 1) * d].transpose(1, 2) for k in range(3)]


def _heads_three_dim_select(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, h, 3, c // 3 // h)
    return [y[..., k, :].transpose(1, 2) for k in range(3)]


def _heads_dim_three(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return [part.transpose(1, 2) for part in y.view(b, n, h, c // 3 // h, 3).unbind(-1)]


def _all_heads_split(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return list(y.view(b, n, 3 * h, c // 3 // h).transpose(1, 2).split([h, h, h], 1))


def _einops_like(y: Tensor, h: int) -> list[Tensor]:
    """rearrange(qkv, "b n (three h d) -> three b h n d", three=3)."""
    b, n, c = y.shape
    y = y.reshape(b, n, 3, h, c // 3 // h).permute(2, 0, 3, 1, 4)
    return [y[0], y[1], y[2]]


QKV = {
    "chunk": _chunk,
    "split_sizes": _split_sizes,
    "3hd_unbind": _three_heads_dim,
    "3hd_select": _three_select,
    "3hd_chunk": _three_chunk,
    "h3d_split": _heads_three_dim_split,
    "h3d_slices": _heads_three_dim_slices,
    "h3d_select": _heads_three_dim_select,
    "hd3_unbind": _heads_dim_three,
    "all_heads_split": _all_heads_split,
    "einops": _einops_like,
}


def _attention_net(
    project: Callable[[Net, Tensor], list[Tensor]], attend: Callable[..., Tensor] = _sdpa, **parts: nn.Module | Tensor
) -> Sample:
    """Embed 3 -> 8, one pre-norm attention block with 4 heads of 2, norm, 8 -> 2."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        y = attend(*project(m, m.norm(x)))
        x = x + m.out(y.transpose(1, 2).reshape(x.shape))
        return m.head(m.norm2(x))

    full = {"embed": lin(3, 8), "norm": nn.LayerNorm(8), "out": lin(8, 8), "norm2": nn.LayerNorm(8), "head": lin(8, 2)}
    return Net(forward, **full, **parts), (torch.randn(2, 5, 3),)


ATTENTION = "8 4 2/4*2"
for _name, _take in QKV.items():
    add(
        f"attention_{_name}",
        ATTENTION,
        lambda _take=_take: _attention_net(lambda m, x: _take(m.qkv(x), 4), qkv=lin(8, 24)),
    )
add(
    "attention_fused_matmul",
    ATTENTION,
    lambda: _attention_net(lambda m, x: _three_heads_dim(m.qkv(x), 4), _matmul_attention, qkv=lin(8, 24)),
)


def _separate(m: Net, x: Tensor) -> list[Tensor]:
    return [_heads(m.q(x), 4), _heads(m.k(x), 4), _heads(m.v(x), 4)]


for _name, _attend in {"sdpa": _sdpa, "matmul": _matmul_attention}.items():
    add(
        f"attention_separate_{_name}",
        ATTENTION,
        lambda _attend=_attend: _attention_net(_separate, _attend, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
    )


def _einsum_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = torch.einsum("bhnd,bhne->bhde", k, v)
    return torch.einsum("bhnd,bhde->bhne", q, total) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)


add(
    "attention_einsum",
    ATTENTION,
    lambda: _attention_net(_separate, _einsum_attention, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
)
add(
    "attention_linear",
    ATTENTION,
    lambda: _attention_net(_separate, _linear_attention, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
)


def _stacked(m: Net, x: Tensor) -> list[Tensor]:
    return list(torch.einsum("bnc,thdc->tbhnd", x, m.w).unbind(0))


def _stacked_select(m: Net, x: Tensor) -> list[Tensor]:
    return [torch.einsum("bnc,hdc->bhnd", x, m.w[k]) for k in range(3)]


add("attention_stacked_einsum", ATTENTION, lambda: _attention_net(_stacked, w=par(3, 4, 2, 8)))
add("attention_stacked_select", ATTENTION, lambda: _attention_net(_stacked_select, w=par(3, 4, 2, 8)))


def _head_weights(m: Net, x: Tensor) -> list[Tensor]:
    return [torch.einsum("bnc,chd->bhnd", x, w) for w in (m.wq, m.wk, m.wv)]


add(
    "attention_head_weights",
    ATTENTION,
    lambda: _attention_net(_head_weights, wq=par(8, 4, 2), wk=par(8, 4, 2), wv=par(8, 4, 2)),
)


def _qk_norm(m: Net, x: Tensor) -> list[Tensor]:
    q, k, v = _separate(m, x)
    return [m.q_norm(q), m.k_norm(k), v]


# One gain a position in the head, shared by the heads: the inner order is too.
add(
    "attention_qk_norm",
    "8 4 2 2/4",
    lambda: _attention_net(
        _qk_norm, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), q_norm=nn.RMSNorm(2, 1e-5), k_norm=nn.RMSNorm(2, 1e-5)
    ),
)
add(
    "attention_qk_norm_plain",
    ATTENTION,
    lambda: _attention_net(
        _qk_norm,
        q=lin(8, 8),
        k=lin(8, 8),
        v=lin(8, 8),
        q_norm=nn.LayerNorm(2, elementwise_affine=False),
        k_norm=nn.LayerNorm(2, elementwise_affine=False),
    ),
)


@family(ATTENTION)
def attention_learned_bias() -> Sample:
    """A bias for each head, query and key: it follows the heads."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        q, k, v = _separate(m, m.norm(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m.bias)
        return m.head(m.norm2(x + m.out(y.transpose(1, 2).reshape(x.shape))))

    net, args = _attention_net(_separate, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), bias=par(4, 5, 5))
    net.function = forward
    return net, args


@family("8 2/4*2")
def attention_alibi() -> Sample:
    """A constant slope a head fixes the heads, and leaves each head its own inner orders."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=q.dtype).view(4, 1, 1)
        distance = torch.arange(5)[None, :] - torch.arange(5)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=slopes * distance)

    return _attention_net(_separate, attend, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8))


@family("8 4 2 2")
def attention_multi_query() -> Sample:
    def project(m: Net, x: Tensor) -> list[Tensor]:
        return [_heads(m.q(x), 4), m.k(x)[:, None], m.v(x)[:, None]]

    return _attention_net(project, _matmul_attention, q=lin(8, 8), k=lin(8, 2), v=lin(8, 2))


@family("8 4*2 2/4*2")
def attention_talking_heads() -> Sample:
    """A linear map over heads before and after the softmax: query heads and value heads are apart."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        q, k, v = _separate(m, m.norm(x))
        weights = torch.einsum("bhij,gh->bgij", q @ k.transpose(-1, -2), m.mix).softmax(-1)
        return m.head(m.norm2(x + m.out((weights @ v).transpose(1, 2).reshape(x.shape))))

    net, args = _attention_net(_separate, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), mix=par(4, 4))
    net.function = forward
    return net, args


@family("8 2 2/2*3")
def attention_falcon() -> Sample:
    """Fused (kv heads, queries of each + 2, dim): two queries a key."""

    def project(m: Net, x: Tensor) -> list[Tensor]:
        b, n, _ = x.shape
        y = m.qkv(x).view(b, n, 2, 4, 2)
        q, k, v = y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]
        k, v = k.expand(q.shape), v.expand(q.shape)
        return [part.flatten(2, 3).transpose(1, 2) for part in (q, k, v)]

    return _attention_net(project, qkv=lin(8, 16))


def _mha(heads: int = 4, **options: Any) -> Callable[[], Sample]:
    weights = options.pop("weights", False)

    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Any:
            x = m.embed(x)
            y, seen = m.attention(x, x, x, need_weights=weights)
            out = m.head(m.norm(x + y))
            return (out, seen) if weights else out

        attention = nn.MultiheadAttention(8, heads, batch_first=True, **options)
        return Net(forward, embed=lin(3, 8), attention=attention, norm=nn.LayerNorm(8), head=lin(8, 2)), (
            torch.randn(2, 5, 3),
        )

    return make


add("mha", ATTENTION, _mha())
add("mha_weights", ATTENTION, _mha(weights=True))
add("mha_bias_kv", ATTENTION, _mha(add_bias_kv=True))
add("mha_zero_attn", ATTENTION, _mha(add_zero_attn=True))


@family("8 6 7 4 2/4*2")
def mha_cross() -> Sample:
    def forward(m: Net, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = m.embed(x)
        return m.head(x + m.attention(x, m.keys(y), m.values(z), need_weights=False)[0])

    attention = nn.MultiheadAttention(8, 4, kdim=6, vdim=7, batch_first=True)
    net = Net(forward, embed=lin(3, 8), keys=lin(3, 6), values=lin(3, 7), attention=attention, head=lin(8, 2))
    return net, (torch.randn(2, 5, 3), torch.randn(2, 6, 3), torch.randn(2, 6, 3))


def _vit(layer: Callable[[], nn.Module]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([m.cls.expand(x.shape[0], -1, -1), x], 1) + m.pos
            return m.head(m.norm(m.layer(x))[:, 0])

        parts = {"patches": conv(3, 8, 3, 3), "cls": par(1, 1, 8), "pos": par(1, 5, 8), "layer": layer()}
        return Net(forward, **parts, norm=nn.LayerNorm(8), head=lin(8, 2)), (image(),)

    return make


add(
    "vit_encoder_layer",
    ATTENTION + " 5",
    _vit(lambda: nn.TransformerEncoderLayer(8, 4, 5, 0.0, "gelu", batch_first=True, norm_first=True)),
)
add(
    "vit_encoder_post_norm",
    ATTENTION + " 5",
    _vit(lambda: nn.TransformerEncoderLayer(8, 4, 5, 0.1, "relu", batch_first=True)),
)
add("vit_zoo", "8*1 4 2/4*2 32", lambda: (zoo.ViT(8, 1, 4, 4, 8, 3, 2), (torch.randn(2, 3, 8, 8),)))


@family("8 4*3 2/4*6 5*2", slow=True)
def transformer_module() -> Sample:
    # Source and target streams share the embedding, so they are one group of 8.
    def forward(m: Net, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=m.head.weight.dtype)
        # Said and not detected: torch would compare the mask's numbers, which torch.export cannot follow.
        return m.head(m.core(m.embed(x), m.embed(y), tgt_mask=mask, tgt_is_causal=True))

    core = nn.Transformer(8, 4, 1, 1, 5, 0.0, batch_first=True)
    return Net(forward, embed=nn.Embedding(7, 8), core=core, head=lin(8, 2)), (
        torch.randint(7, (2, 5)),
        torch.randint(7, (2, 4)),
    )


# --- language models ---------------------------------------------------------------------------------------

add(
    "gpt_tied",
    "8 2 4/2*2 32",
    lambda: (zoo.GPT(7, 6, 8, 1, 2), (torch.randint(7, (2, 6)),)),
)
add(
    "gpt_rope_gqa_swiglu",
    "16 2 2/2 4/2 42",
    lambda: (
        zoo.GPT(7, 6, 16, 1, 4, kv_heads=2, rope=True, swiglu=True, tied=False, norm="rms"),
        (torch.randint(7, (2, 6)),),
    ),
)


@family("8 2 4/2*2 5")
def gpt_tied_modules() -> Sample:
    """The head and the embedding share one parameter under two names."""

    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.embed(x) + m.pos[: x.shape[1]]
        n = m.norm(y)
        q, k, v = (_heads(part, 2) for part in m.qkv(n).split(8, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + m.out(mixed.transpose(1, 2).reshape(y.shape))
        y = y + m.down(F.gelu(m.up(m.norm2(y)), approximate="tanh"))
        return m.head(m.norm3(y))

    parts = {f"norm{k}": nn.LayerNorm(8) for k in ("", 2, 3)}
    net = Net(
        forward,
        embed=nn.Embedding(7, 8),
        pos=par(9, 8),
        qkv=lin(8, 24),
        out=lin(8, 8),
        up=lin(8, 5),
        down=lin(5, 8),
        head=lin(8, 7, bias=False),
        **parts,
    )
    net.head.weight = net.embed.weight
    return net, (torch.randint(7, (2, 6)),)


class RMSNorm(nn.Module):
    """As written in Llama: float32 statistics, gain after the cast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _angles(n: int, d: int, like: Tensor) -> Tensor:
    frequency = 1.0 / (100.0 ** (torch.arange(0, d, 2) / d))
    return torch.outer(torch.arange(n).float(), frequency).to(like.dtype)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    angles = _angles(x.shape[-2], x.shape[-1], x)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    return x * cos + torch.cat([-b, a], -1) * sin


def rotate_complex(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    angles = _angles(x.shape[-2], x.shape[-1], x)
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turns).flatten(-2)


def rotate_pairs(x: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    angles = _angles(x.shape[-2], x.shape[-1], x)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def repeat_interleave(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), is_causal=True)


def repeat_expand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def wide(x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        return x[:, :, None].expand(b, h, q.shape[1] // h, n, d).reshape(b, -1, n, d)

    return F.scaled_dot_product_attention(q, wide(k), wide(v), is_causal=True)


def enable_gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, d = q.shape
    q = q.view(b, k.shape[1], -1, n, d)
    mask = torch.full((n, n), float("-inf"), dtype=q.dtype).triu(1)
    weights = (torch.einsum("bkrid,bkjd->bkrij", q, k) / math.sqrt(d) + mask).softmax(-1)
    return torch.einsum("bkrij,bkjd->bkrid", weights, v).reshape(b, h, n, d)


def _llama(rope: Callable[[Tensor], Tensor], attend: Callable[..., Tensor], gate: str = "silu") -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.embed(x)
            y = m.norm1(x)
            b, n, _ = y.shape
            q, k, v = (p(y).view(b, n, -1, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
            mixed = attend(rope(q), rope(k), v)
            x = x + m.o(mixed.transpose(1, 2).reshape(b, n, -1))
            y = m.norm2(x)
            if gate == "fused":
                g, u = m.gate_up(y).chunk(2, -1)
                y = F.silu(g) * u
            elif gate == "gelu":
                y = F.gelu(m.gate(y)) * m.up(y)
            else:
                y = F.silu(m.gate(y)) * m.up(y)
            return m.head(m.norm3(x + m.down(y)))

        def no_bias(a: int, b: int) -> nn.Module:
            return lin(a, b, bias=False)

        parts = {"gate_up": no_bias(6, 10)} if gate == "fused" else {"gate": no_bias(6, 5), "up": no_bias(6, 5)}
        return Net(
            forward,
            embed=nn.Embedding(7, 6),
            q=no_bias(6, 16),
            k=no_bias(6, 8),
            v=no_bias(6, 8),
            o=no_bias(16, 6),
            norm1=RMSNorm(6),
            norm2=RMSNorm(6),
            norm3=RMSNorm(6),
            down=no_bias(5, 6),
            head=no_bias(6, 7),
            **parts,
        ), (torch.randint(7, (2, 5)),)

    return make


# Two key heads, two queries for each, values of 4 a key head; rotations fix the inner order of queries and keys.
LLAMA = "6 2 2/2 4/2 5"
add("llama_half_interleave", LLAMA, _llama(rotate_half, repeat_interleave))
add("llama_half_expand", LLAMA, _llama(rotate_half, repeat_expand, "gelu"))
add("llama_half_gqa", LLAMA, _llama(rotate_half, enable_gqa, "fused"))
add("llama_half_einsum", LLAMA, _llama(rotate_half, grouped_einsum))
add("llama_complex", LLAMA, _llama(rotate_complex, repeat_interleave))
add("llama_pairs", LLAMA, _llama(rotate_pairs, repeat_expand))
# Without rotations the inner order of queries and keys is free for each key head.
add("llama_no_rope", LLAMA + " 4/2", _llama(lambda x: x, repeat_expand))


@family("6 2*3 3/2*6 5*2")
def t5() -> Sample:
    """Encoder and decoder on one shared embedding; relative bias by buckets, learned for each head."""

    def attend(p: nn.ModuleDict, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (_heads(p[n](z), 2) for n, z in (("q", x), ("k", y), ("v", y)))
        scores = q @ k.transpose(-1, -2)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return p["o"]((weights @ v).transpose(1, 2).reshape(x.shape))

    def relative(table: nn.Embedding, n: int, causal: bool, dtype: torch.dtype) -> Tensor:
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        bias = table(distance.clamp(-2, 2) + 2).permute(2, 0, 1)
        return bias + torch.full((n, n), -1e9, dtype=dtype).triu(1) if causal else bias

    def forward(m: Net, source: Tensor, target: Tensor) -> Tensor:
        x, y = m.shared(source), m.shared(target)
        n = m.n[0](x)
        x = x + attend(m.enc, n, n, relative(m.enc_bias, x.shape[1], False, x.dtype))
        x = m.n[1](x + m.enc["down"](F.relu(m.enc["up"](m.n[2](x)))))
        n = m.n[3](y)
        y = y + attend(m.dec, n, n, relative(m.dec_bias, y.shape[1], True, x.dtype))
        y = y + attend(m.cross, m.n[4](y), x, None)
        y = m.n[5](y + m.dec["down"](F.relu(m.dec["up"](m.n[6](y)))))
        return F.linear(y * 6**-0.5, m.shared.weight)

    def block(ff: bool) -> nn.ModuleDict:
        names = {n: lin(6, 6, bias=False) for n in "qkvo"}
        return nn.ModuleDict(names | ({"up": lin(6, 5, bias=False), "down": lin(5, 6, bias=False)} if ff else {}))

    return Net(
        forward,
        shared=nn.Embedding(7, 6),
        n=nn.ModuleList([RMSNorm(6) for _ in range(7)]),
        enc=block(True),
        dec=block(True),
        cross=block(False),
        enc_bias=nn.Embedding(5, 2),
        dec_bias=nn.Embedding(5, 2),
    ), (torch.randint(7, (2, 5)), torch.randint(7, (2, 4)))


@family("4 2 2/2*2 5 6")
def swin() -> Sample:
    """Shifted windows of 2 x 2 on 4 x 4 tokens, relative position bias, patch merging."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.patches(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = torch.roll(m.norm1(x), (-1, -1), (1, 2))
        y = y.view(b, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = m.qkv(y).reshape(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = m.table[m.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        weights = q @ k.transpose(-2, -1) + bias
        weights = weights.view(b, 4, 2, 4, 4) + m.shift[None, :, None]
        y = weights.view(-1, 2, 4, 4).softmax(-1) @ v
        y = m.out(y.transpose(1, 2).reshape(-1, 4, c))
        y = y.view(b, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (1, 1), (1, 2))
        x = x + m.down(F.gelu(m.up(m.norm2(x))))
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return m.head(m.norm4(m.merge(m.norm3(x))).mean((1, 2)))

    place = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    apart = place[:, None] - place[None] + 1
    net = Net(
        forward,
        patches=conv(3, 4, 2, 2),
        norm1=nn.LayerNorm(4),
        qkv=lin(4, 12),
        out=lin(4, 4),
        table=par(9, 2),
        norm2=nn.LayerNorm(4),
        up=lin(4, 5),
        down=lin(5, 4),
        norm3=nn.LayerNorm(16),
        merge=lin(16, 6, bias=False),
        norm4=nn.LayerNorm(6),
        head=lin(6, 2),
    )
    net.register_buffer("index", apart[..., 0] * 3 + apart[..., 1], persistent=False)
    net.register_buffer("shift", torch.where(torch.rand(4, 4, 4) > 0.7, -9.0, 0.0).double(), persistent=False)
    return net, (image(3, 8),)


@family("4 5 6")
def mlp_mixer() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.patches(x).flatten(2).transpose(1, 2)
        x = x + m.t2(F.gelu(m.t1(m.norm1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + m.c2(F.gelu(m.c1(m.norm2(x))))
        return m.head(x)

    return Net(
        forward,
        patches=conv(3, 4, 3, 3),
        norm1=nn.LayerNorm(4),
        t1=lin(4, 5),
        t2=lin(5, 4),
        norm2=nn.LayerNorm(4),
        c1=lin(4, 6),
        c2=lin(6, 4),
        head=lin(4, 2),
    ), (image(),)


@family("3 4 5 2 2/2*2")
def perceiver() -> Sample:
    """Learned latents are units too: nothing tells them apart."""

    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.latents.expand(x.shape[0], -1, -1)
        q, k, v = _heads(m.q(y), 2), _heads(m.k(m.embed(x)), 2), _heads(m.v(m.embed(x)), 2)
        y = y + m.o(_sdpa(q, k, v).transpose(1, 2).reshape(y.shape))
        return m.head(y.mean(1))

    return Net(
        forward,
        latents=par(3, 4),
        embed=lin(3, 5),
        q=lin(4, 4),
        k=lin(5, 4),
        v=lin(5, 4),
        o=lin(4, 4),
        head=lin(4, 2),
    ), (torch.randn(2, 6, 3),)


# --- recurrent nets ----------------------------------------------------------------------------------------


def _recurrent(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            y, last = m.core(m.embed(x))
            last = last[0] if isinstance(last, tuple) else last
            return torch.cat([m.head(y).flatten(1), m.last(last.transpose(0, 1).flatten(1))], 1)

        core = kind(4, 3, batch_first=True, **options)
        out = options.get("proj_size", 3) * (2 if options.get("bidirectional") else 1)
        rows = out * options.get("num_layers", 1)
        return Net(forward, embed=lin(5, 4), core=core, head=lin(out, 2), last=lin(rows, 2)), (torch.randn(2, 4, 5),)

    return make


add("lstm", "4 3", _recurrent(nn.LSTM))
add("lstm_deep_both", "4 3*4", _recurrent(nn.LSTM, num_layers=2, bidirectional=True))
add("lstm_projected", "4 3*4 2*4", _recurrent(nn.LSTM, num_layers=2, bidirectional=True, proj_size=2))
add("gru", "4 3", _recurrent(nn.GRU))
add("gru_deep_both", "4 3*4", _recurrent(nn.GRU, num_layers=2, bidirectional=True, bias=False))
add("rnn_tanh", "4 3", _recurrent(nn.RNN))
add("rnn_relu_deep_both", "4 3*4", _recurrent(nn.RNN, num_layers=2, bidirectional=True, nonlinearity="relu"))


def _cell(kind: type[nn.Module]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], 3)
            state = (h, h) if kind is nn.LSTMCell else h
            for t in range(x.shape[1]):
                state = m.core(x[:, t], state)
            return m.head(state[0] if kind is nn.LSTMCell else state)

        return Net(forward, core=kind(5, 3), head=lin(3, 2)), (torch.randn(2, 3, 5),)

    return make


add("lstm_cell", "3", _cell(nn.LSTMCell))
add("gru_cell", "3", _cell(nn.GRUCell))
add("rnn_cell", "3", _cell(nn.RNNCell))


@family("5 4 3 2")
def mamba() -> Sample:
    """A selective state space: 4 channels, 3 states shared by the channels, rank-2 steps."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        u, z = m.inner(m.norm(x)).chunk(2, -1)
        u = F.silu(m.conv(u.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        rank, b, c = m.select(u).split([2, 3, 3], -1)
        step = F.softplus(m.step(rank))
        a = -torch.exp(m.a_log)
        state, rows = u.new_zeros(u.shape[0], 4, 3), []
        for t in range(u.shape[1]):
            state = torch.exp(step[:, t, :, None] * a) * state + (step * u)[:, t, :, None] * b[:, t, None]
            rows.append((state * c[:, t, None]).sum(-1))
        y = (torch.stack(rows, 1) + u * m.d) * F.silu(z)
        return m.head(x + m.out(y))

    return Net(
        forward,
        embed=lin(3, 5),
        norm=RMSNorm(5),
        inner=lin(5, 8),
        conv=nn.Conv1d(4, 4, 2, padding=1, groups=4),
        select=lin(4, 8),
        step=lin(2, 4),
        a_log=par(4, 3),
        d=par(4),
        out=lin(4, 5),
        head=lin(5, 2),
    ), (torch.randn(2, 3, 3),)


# --- mixtures of experts -----------------------------------------------------------------------------------


def _moe(mix: Callable[[Net, Tensor, Tensor], Tensor], parts: Callable[[], dict[str, Any]]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.embed(x)
            return m.head(x + mix(m, x, m.router(x)))

        return Net(forward, embed=lin(2, 4), router=lin(4, 3), head=lin(4, 2), **parts()), (torch.randn(6, 2),)

    return make


def _stacked_experts() -> dict[str, Any]:
    return {"w1": par(3, 5, 4), "b1": par(3, 5), "w2": par(3, 4, 5)}


def _dense(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", logits.softmax(-1), hidden, m.w2)


def _dense_bmm(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    rows = x.expand(3, *x.shape)
    hidden = F.gelu(torch.bmm(rows, m.w1.transpose(1, 2)) + m.b1[:, None])
    return (torch.bmm(hidden, m.w2.transpose(1, 2)) * logits.softmax(-1).t()[..., None]).sum(0)


def _top_one_hot(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    weights = (F.one_hot(places, 3).to(values.dtype) * values[..., None]).sum(1)
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", weights, hidden, m.w2)


def _top_scatter(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    weights = torch.zeros_like(logits).scatter(1, places, values / values.sum(-1, keepdim=True))
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", weights, hidden, m.w2)


def _top_gather(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    """Weights of the chosen experts are looked up by their number."""
    values, places = logits.softmax(-1).topk(2, -1)
    hidden = F.gelu(torch.einsum("nd,nkhd->nkh", x, m.w1[places]) + m.b1[places])
    return torch.einsum("nk,nkh,nkdh->nd", values, hidden, m.w2[places])


def _loop_modules(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    weights = logits.softmax(-1)
    return sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(m.experts))  # type: ignore[return-value]


def _loop_stacked(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    weights = logits.softmax(-1)
    total = torch.zeros_like(x)
    for k in range(3):
        total = total + weights[:, k, None] * F.linear(F.gelu(F.linear(x, m.w1[k], m.b1[k])), m.w2[k])
    return total


def _loop_top(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    total = torch.zeros_like(x)
    for k, expert in enumerate(m.experts):
        total = total + ((places == k) * values).sum(-1, keepdim=True) * expert(x)
    return total


def _expert_list() -> dict[str, Any]:
    return {"experts": nn.ModuleList([seq(lin(4, 5), nn.GELU(), lin(5, 4)) for _ in range(3)])}


add("moe_dense_einsum", "4 3 5/3", _moe(_dense, _stacked_experts))
add("moe_dense_bmm", "4 3 5/3", _moe(_dense_bmm, _stacked_experts))
add("moe_top_one_hot", "4 3 5/3", _moe(_top_one_hot, _stacked_experts))
add("moe_top_scatter", "4 3 5/3", _moe(_top_scatter, _stacked_experts))
# The inner order may be another for each expert here too, but the looked-up weights are indexed by rank.
add("moe_top_gather", "4 3 5/3", _moe(_top_gather, _stacked_experts))
add("moe_loop_modules", "4 5*3", _moe(_loop_modules, _expert_list))
add("moe_loop_top", "4 5*3", _moe(_loop_top, _expert_list))
add(
    "moe_loop_stacked",
    None,
    _moe(_loop_stacked, _stacked_experts),
    log_order=math.lgamma(5) + 3 * math.lgamma(6),
)


# --- reparametrised layers ---------------------------------------------------------------------------------


@family("4")
def weight_norm() -> Sample:
    norm = nn.utils.parametrizations.weight_norm
    return seq(norm(lin(3, 4)), nn.ReLU(), norm(lin(4, 2))), (torch.randn(3, 3),)


@family("4 5")
def weight_norm_conv_old() -> Sample:
    norm = nn.utils.weight_norm
    return seq(norm(conv(3, 4, 3)), nn.ReLU(), norm(nn.ConvTranspose2d(4, 5, 2)), nn.GELU(), conv(5, 2, 1)), (image(),)


@family("4")
def spectral_norm() -> Sample:
    norm = nn.utils.parametrizations.spectral_norm
    return seq(norm(lin(3, 4)), nn.ReLU(), norm(lin(4, 2))), (torch.randn(3, 3),)


@family("4")
def spectral_norm_conv() -> Sample:
    norm = nn.utils.parametrizations.spectral_norm
    return seq(norm(conv(3, 4, 3)), nn.ReLU(), norm(conv(4, 2, 1))), (image(),)


@family("4 5")
def orthogonal() -> Sample:
    norm = nn.utils.parametrizations.orthogonal
    layers = [norm(lin(3, 4), orthogonal_map="matrix_exp"), nn.GELU(), lin(4, 5), nn.GELU(), lin(5, 2)]
    return seq(*layers), (torch.randn(3, 3),)


@family("4 2")
def lora() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(F.gelu(F.linear(x, m.a.weight + m.up @ m.down, m.a.bias)))

    return Net(forward, a=lin(3, 4), b=lin(4, 2), up=par(4, 2), down=par(2, 3)), (torch.randn(3, 3),)


@family("4 5")
def hypernetwork() -> Sample:
    """The weights of the second layer are the output of another net."""

    def forward(m: Net, x: Tensor, z: Tensor) -> Tensor:
        w = m.make(F.tanh(m.embed(z))).view(4, 3)
        return m.out(F.gelu(F.linear(x, w)))

    net = Net(forward, embed=lin(2, 5), make=lin(5, 12), out=lin(4, 2))
    return net, (torch.randn(3, 3), torch.randn(2))


@family("2 3/2 3 4/3")
def capsules() -> Sample:
    def squash(x: Tensor) -> Tensor:
        n = x.pow(2).sum(-1, keepdim=True)
        return n / (1 + n) * x / (n + 1e-9).sqrt()

    def forward(m: Net, x: Tensor) -> Tensor:
        u = squash(m.a(x).view(-1, 2, 3))
        votes = torch.einsum("jiod,bjd->bjio", m.w, u)
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
        for _ in range(2):
            v = squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return m.out(v.flatten(1))

    return Net(forward, a=lin(5, 6), w=par(2, 3, 4, 3), out=lin(12, 2)), (torch.randn(3, 5),)


@family("4 5")
def vector_quantised() -> Sample:
    """The nearest of five codes: codes are units."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        nearest = (h[:, None] - m.codes[None]).pow(2).sum(-1).argmin(-1)
        return m.b(F.embedding(nearest, m.codes) + 0.1 * h)

    return Net(forward, a=lin(3, 4), b=lin(4, 2), codes=par(5, 4)), (torch.randn(6, 3),)


# --- odd ops: what coset does not know must fix, and never break -------------------------------------------

simple("fft_over_units", "5", lambda m, x: m.d(F.relu(m.c(torch.fft.rfft(m.a(x)).abs()))), c=lin(3, 5), d=lin(5, 2))
simple("sort_units", "4", lambda m, x: m.b(m.a(x).sort(-1).values))
simple("sort_descending_and_places", None, lambda m, x: m.b(m.a(x).sort(-1, descending=True)[1].to(x.dtype)))
simple("cumsum_units", "", lambda m, x: m.b(m.a(x).cumsum(-1)))
simple("cumprod_units", "", lambda m, x: m.b(m.a(x).cumprod(-1)))
simple("cummax_units", "", lambda m, x: m.b(m.a(x).cummax(-1).values))
simple("median_values", "4", lambda m, x: m.b(m.a(x) * m.a(x).median(-1, keepdim=True).values))
simple("median_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).median(-1, keepdim=True).indices)
simple("kthvalue_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).kthvalue(2, -1, keepdim=True).indices)
simple("argmax_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).argmax(-1, keepdim=True))
simple("max_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).max(-1, keepdim=True)[1])
simple("mask_by_mean", "4", lambda m, x: m.b(torch.where(m.a(x) > m.a(x).mean(-1, keepdim=True), m.a(x), 0.0)))
simple("top_k_units", "4", lambda m, x: m.b(m.a(x) * (m.a(x) >= m.a(x).topk(2, -1).values[:, -1:])))
simple("softmax_units", "4", lambda m, x: m.b(m.a(x).softmax(-1)))
simple("logsumexp_units", "4", lambda m, x: m.b(m.a(x) - m.a(x).logsumexp(-1, keepdim=True)))
simple("gram_tokens", "4", lambda m, x: (m.a(x) @ m.a(x).transpose(0, 1)).tanh())
simple(
    "gram_units",
    "4",
    lambda m, x: m.c(torch.einsum("ni,nj->nij", m.a(x), m.a(x)).flatten(1)),
    c=lambda: lin(16, 2),
)
simple(
    "outer_product",
    "4 5",
    lambda m, x: m.d((m.a(x)[:, :, None] * m.c(x)[:, None]).flatten(1)),
    c=lambda: lin(3, 5),
    d=lambda: lin(20, 2),
)
simple("square", "4", lambda m, x: m.b(m.a(x) * m.a(x)))
simple("concat_with_itself", "4", lambda m, x: m.c(torch.cat([m.a(x), m.a(x)], 1).relu()), c=lambda: lin(8, 2))
simple(
    "concat_relu",
    "4",
    lambda m, x: m.c(torch.cat([m.a(x).relu(), (-m.a(x)).relu()], 1)),
    c=lambda: lin(8, 2),
)
simple(
    "permuted_residual",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x)[:, [2, 0, 3, 1]]))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "flipped_units",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).flip(1)))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "rolled_units",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).roll(1, 1)))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "rolled_flat", "5", lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).roll(1)))), c=lambda: lin(4, 5), d=lambda: lin(5, 2)
)
simple("shared_twice", "4", lambda m, x: m.b(F.relu(m.c(F.relu(m.c(m.a(x)))))), c=lambda: lin(4, 4))
simple("tied_autoencoder", "4", lambda m, x: F.linear(F.relu(m.a(x)), m.a.weight.t(), m.c), c=lambda: par(3))
simple("maxout", "3 2/3", lambda m, x: m.d(m.c(x).view(-1, 3, 2).amax(-1)), c=lambda: lin(3, 6), d=lambda: lin(3, 2))
simple("glu", "4", lambda m, x: m.b(F.glu(m.c(x))), c=lambda: lin(3, 8))
simple(
    "bilinear",
    "4 5 6",
    lambda m, x: m.e(F.gelu(m.d(m.a(x), m.c(x)))),
    c=lambda: lin(3, 5),
    d=lambda: nn.Bilinear(4, 5, 6),
    e=lambda: lin(6, 2),
)
simple(
    "einsum_two_layers",
    "4 5",
    lambda m, x: torch.einsum("ni,hi,oh->no", m.a(x).tanh(), m.c, m.d),
    c=lambda: par(5, 4),
    d=lambda: par(2, 5),
)
simple("sirens", "4", lambda m, x: m.b(torch.sin(3 * m.a(x))))
simple("cosine_similarity", "4", lambda m, x: F.cosine_similarity(m.a(x)[:, None], m.c, dim=-1), c=lambda: par(5, 4))
simple("cdist", None, lambda m, x: torch.cdist(m.a(x), m.c), c=lambda: par(5, 4))
simple("normalise", "4", lambda m, x: m.b(F.normalize(m.a(x), dim=-1)))
simple("local_response", None, lambda m, x: m.b(F.local_response_norm(m.a(x)[..., None], 3)[..., 0]))
simple("std_of_units", "4", lambda m, x: m.a(x).tanh().std(-1, keepdim=True) + m.b(m.a(x).tanh()))
simple("var_of_units", "4", lambda m, x: m.a(x).tanh().var(-1, keepdim=True) + m.b(m.a(x).tanh()))
simple("std_alone", "4", lambda m, x: m.a(x).tanh().std(-1, keepdim=True))
simple("cast_to_int", "4", lambda m, x: m.b((3 * m.a(x).relu()).long().to(x.dtype)))
simple("cast_to_bool", "4", lambda m, x: m.b(m.a(x).relu().bool().to(x.dtype)))
simple("clamp_as_relu", "4", lambda m, x: m.b(m.a(x).clamp(min=0)))
simple("hardtanh_uneven", "4", lambda m, x: m.b(F.hardtanh(m.a(x), -1.0, 0.3)))
simple("relu6", "4", lambda m, x: m.b(F.relu6(m.a(x))))
simple(
    "film",
    "4 5",
    lambda m, x: m.b(m.a(x) * m.d(F.relu(m.c(x))).chunk(2, -1)[0] + m.d(m.c(x).relu()).chunk(2, -1)[1]),
    c=lambda: lin(3, 5),
    d=lambda: lin(5, 8),
)
simple(
    "masked_linear",
    None,
    lambda m, x: m.b(F.relu(F.linear(x, m.a.weight * m.mask, m.a.bias))),
    mask=lambda: torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1]]),
)
simple("buffer_as_weight", "4", lambda m, x: m.b(F.relu(F.linear(x, m.w))), w=lambda: torch.randn(4, 3))
simple("overwrite_zero", None, lambda m, x: m.b(_overwrite(m.a(x), 0.0)))
simple("overwrite_scaled", "2*2", lambda m, x: m.b(_double_some(m.a(x))))
simple("overwrite_column", None, lambda m, x: m.b(_column(m.a(x))))
simple("masked_assign", "4", lambda m, x: m.b(_masked(m.a(x))))
simple("stacked_layers", None, lambda m, x: m.b(_layers(m.w, m.a(x))), w=lambda: par(3, 4, 4))
simple(
    "stacked_by_layer",
    None,
    lambda m, x: m.b(_residual_layers(m.u, m.d, m.a(x))),
    u=lambda: par(3, 5, 4),
    d=lambda: par(3, 4, 5),
    log_order=math.lgamma(5) + 3 * math.lgamma(6),
)
simple("index_add_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_add(m.rows)), rows=lambda: par(3, 4))
simple("index_put_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_put(m.rows)), rows=lambda: par(3, 4))
simple("index_copy_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_copy(m.rows)), rows=lambda: par(3, 4))
simple("scatter_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _scatter(m.rows)), rows=lambda: par(3, 4))
simple("masked_by_scalar", "4", lambda m, x: m.b(m.a(x).masked_fill(m.a(x) > 0.5, 0.25)))
simple(
    "fill_by_parameter",
    "4",
    lambda m, x: m.b(torch.where(m.a(x) > 0.2, m.a(x), m.s)),
    s=lambda: nn.Parameter(torch.tensor(0.3)),
)
simple("unit_numbers", "", lambda m, x: m.b(m.a(x) * torch.arange(4)))
simple("linspace_gains", "", lambda m, x: m.b(m.a(x) * torch.linspace(0, 1, 4)))
simple("eye_added", "", lambda m, x: m.b(m.a(x) @ (torch.eye(4, dtype=x.dtype) + 0.1)))
simple("diagonal", None, lambda m, x: m.b(m.a(x) + torch.diagonal(m.w)), w=lambda: par(4, 4))
simple("diag_embed", None, lambda m, x: m.b(m.a(x) @ torch.diag_embed(m.w)), w=lambda: par(4))
simple("trace_einsum", None, lambda m, x: m.b(m.a(x)) + torch.einsum("ii->", m.w), w=lambda: par(4, 4))
simple(
    "inverse",
    "",
    lambda m, x: m.b(m.a(x) @ torch.linalg.inv(m.w + 3 * torch.eye(4, dtype=x.dtype))),
    w=lambda: par(4, 4),
)
simple(
    "kron",
    None,
    lambda m, x: m.d(F.linear(x, torch.kron(m.u, m.v)).tanh()),
    u=lambda: par(2, 3),
    v=lambda: par(3, 1),
    d=lambda: lin(6, 2),
)
simple("unfold_units", None, lambda m, x: m.c(m.a(x).unfold(1, 2, 1).flatten(1)), c=lambda: lin(6, 2))
simple("repeat_units", "4 2/4", lambda m, x: m.c(m.a(x).repeat(1, 2).relu()), c=lambda: lin(8, 2))
simple("repeat_interleave_units", "4 2/4", lambda m, x: m.c(m.a(x).repeat_interleave(2, 1).relu()), c=lambda: lin(8, 2))
simple(
    "every_other_unit",
    "2*2",
    lambda m, x: m.c(m.a(x)[:, ::2]) + m.d(m.a(x)[:, 1::2].relu()),
    c=lambda: lin(2, 2),
    d=lambda: lin(2, 2),
)
simple("every_other_shifted", None, lambda m, x: m.c(m.a(x)[:, 1::2]), c=lambda: lin(2, 2))
simple("every_other_past", None, lambda m, x: m.c(m.e(x)[:, 2::2]), e=lambda: lin(3, 6), c=lambda: lin(2, 2))
simple("sub_units_reversed", None, lambda m, x: m.b(m.a(x) + torch.cat([m.a(x)[:, 2:], m.a(x)[:, :2]], 1)))
simple("blocks_at_odds", None, lambda m, x: m.e(_cat_add(m.a(x), m.c(x))), c=lambda: lin(3, 3), e=lambda: lin(7, 2))
simple(
    "embedding_bag", "4", lambda m, x: m.b(m.t(x)).tanh(), x=torch.randint(5, (3, 4)), t=lambda: nn.EmbeddingBag(5, 4)
)
simple("prelu_units", "4", lambda m, x: m.b(m.p(m.a(x))), p=lambda: nn.PReLU(4))
simple("unpool", None, lambda m, x: _unpool(m, x))
simple("stack_of_two", "4", lambda m, x: m.b(torch.stack([m.a(x), m.a(x).tanh()], 1).mean(1)))
simple(
    "stack_of_different",
    "4*2",
    lambda m, x: m.d(F.relu(torch.stack([m.a(x), m.c(x)], -1).flatten(1))),
    c=lambda: lin(3, 4),
    d=lambda: lin(8, 2),
)
simple(
    "complex_weights",
    None,
    lambda m, x: torch.view_as_real(m.a(x).to(torch.complex128) @ torch.view_as_complex(m.w)).flatten(1),
    w=lambda: par(4, 2, 2),
)
simple(
    "spatial_fft",
    None,
    lambda m, x: m.k(torch.fft.rfft2(m.c(x)).abs()),
    x=torch.randn(2, 3, 5, 5),
    c=lambda: conv(3, 4, 2),
    k=lambda: conv(4, 2, 1),
)
simple(
    "deep_set",
    "4 5",
    lambda m, x: m.d(m.c(F.relu(m.a(x))).sum(0, keepdim=True).relu()),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple("max_over_units", "4", lambda m, x: m.b(m.a(x)) + m.a(x).amax(-1, keepdim=True))
simple(
    "min_max_pair",
    "4 5",
    lambda m, x: m.b(torch.maximum(m.a(x), m.d(m.c(x).relu()))),
    c=lambda: lin(3, 5),
    d=lambda: lin(5, 4),
)
simple("batch_norm_inputs", "4", lambda m, x: m.b(F.relu(m.a(m.n(x)))), n=lambda: nn.BatchNorm1d(3))
simple("batch_norm_train_mode", "4", lambda m, x: m.b(F.batch_norm(m.a(x), None, None, training=True)))
simple("dead_parameter", "4", lambda m, x: m.b(F.relu(m.a(x))), unused=lambda: par(4, 3))
simple("embedding_of_arange", "4", lambda m, x: m.b(m.a(x) + m.t(torch.arange(3))), t=lambda: nn.Embedding(3, 4))
simple("units_by_arange", "4", lambda m, x: m.b(m.a(x)[:, torch.arange(4)].relu()))
simple("one_hot_numbers", "", lambda m, x: m.b(m.a(x) * F.one_hot(torch.arange(4), 4).to(x.dtype).cumsum(0).sum(0)))
simple("long_constant_index", None, lambda m, x: m.b(m.a(x)[:, m.order]), order=lambda: torch.tensor([1, 3, 0, 2]))

simple(
    "repeat_then_slice", None, lambda m, x: m.c(F.relu(m.a(x)).repeat_interleave(2, -1)[:, 1:6]), c=lambda: lin(5, 2)
)
simple(
    "rezero",
    "4",
    lambda m, x: m.b(m.a(x) + m.s * F.gelu(m.c(m.a(x)))),
    c=lambda: lin(4, 4),
    s=lambda: nn.Parameter(torch.tensor(0.5)),
)
simple("tensordot", "4", lambda m, x: torch.tensordot(m.a(x).tanh(), m.w, dims=([1], [1])), w=lambda: par(2, 4))
simple(
    "multi_dot",
    "4 5",
    lambda m, x: torch.linalg.multi_dot([x, m.u, m.w, m.v]),
    u=lambda: par(3, 4),
    w=lambda: par(4, 5),
    v=lambda: par(5, 2),
)
simple("einsum_diagonal", None, lambda m, x: m.b(torch.einsum("bi,ii->bi", m.a(x).tanh(), m.w)), w=lambda: par(4, 4))
simple("differences", "", lambda m, x: m.c(torch.diff(m.a(x), dim=-1)), c=lambda: lin(3, 2))
simple("matrix_norm", "4", lambda m, x: m.b(m.a(x) / torch.linalg.matrix_norm(m.a(x))))
simple(
    "weight_standardised",
    "4",
    lambda m, x: m.b(F.relu(F.linear(x, m.a.weight - m.a.weight.mean(1, keepdim=True), m.a.bias))),
)
simple("always_dropout", None, lambda m, x: m.b(F.dropout(m.a(x).relu(), 0.5, True)))
simple("random_gains", "", lambda m, x: m.b(m.a(x).relu() * torch.rand(4, dtype=x.dtype)))
simple(
    "layer_norm_of_two_axes",
    "2 3/2",
    lambda m, x: m.d(m.n(m.c(x).view(-1, 2, 3)).flatten(1)),
    c=lambda: lin(3, 6),
    n=lambda: nn.LayerNorm([2, 3]),
    d=lambda: lin(6, 2),
)
simple("two_outputs", "", lambda m, x: (m.b(m.a(x).relu()), m.a(x)))
simple("outputs_in_a_dict", "4", lambda m, x: {"logits": m.b(m.a(x).relu()), "nothing": None})
simple(
    "linear_attention_cumsum",
    "4 5",
    lambda m, x: m.o(torch.einsum("nd,nde->ne", m.a(x), torch.einsum("nd,ne->nde", m.k(x), m.v(x)).cumsum(0))),
    k=lambda: lin(3, 4),
    v=lambda: lin(3, 5),
    o=lambda: lin(5, 2),
)


@family(None)
def heads_in_windows() -> Sample:
    """Depthwise convolutions of their own over groups of heads, as CoaT has them: (a + b) x c meets a x c + b x c."""

    def forward(m: Net, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, v = (p(x).reshape(b, n, 6, 4).transpose(1, 2) for p in (m.q, m.v))
        tall = v.transpose(-1, -2).reshape(b, 24, 3, 3)
        both = torch.cat([c(part) for c, part in zip((m.c, m.d), tall.split([8, 16], 1), strict=True)], 1)
        out = q * both.reshape(b, 6, 4, 9).transpose(-1, -2)
        return m.o(out.transpose(1, 2).reshape(b, n, 24))

    parts = {"c": conv(8, 8, 3, padding=1, groups=8), "d": conv(16, 16, 3, padding=1, groups=16)}
    return Net(forward, q=lin(5, 24), v=lin(5, 24), o=lin(24, 2), **parts), (torch.randn(2, 9, 5),)


def _overwrite(h: Tensor, value: float) -> Tensor:
    h = h.clone()
    h[:, :2] = value
    return h.tanh()


def _double_some(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, :2] *= 2
    return h.tanh()


def _column(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 1] = h[:, 0]
    return h.tanh()


def _masked(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0.0
    return h


def _layers(w: Tensor, h: Tensor) -> Tensor:
    for k in range(3):
        h = F.gelu(h @ w[k])
    return h


def _residual_layers(u: Tensor, d: Tensor, h: Tensor) -> Tensor:
    for k in range(3):
        h = h + F.linear(F.gelu(F.linear(h, u[k])), d[k])
    return h


def _index_add(rows: Tensor) -> Tensor:
    return torch.zeros(3, 4, dtype=rows.dtype).index_add(0, torch.tensor([2, 0, 2]), rows)


def _index_put(rows: Tensor) -> Tensor:
    out = torch.zeros(3, 4, dtype=rows.dtype)
    out[torch.tensor([2, 0, 1])] = rows
    return out


def _index_copy(rows: Tensor) -> Tensor:
    return torch.zeros(3, 4, dtype=rows.dtype).index_copy(0, torch.tensor([2, 0, 1]), rows)


def _scatter(rows: Tensor) -> Tensor:
    index = torch.tensor([2, 0, 1])[:, None].expand(3, 4)
    return torch.zeros(3, 4, dtype=rows.dtype).scatter(0, index, rows)


def _cat_add(a: Tensor, c: Tensor) -> Tensor:
    """Blocks of 4 and 3 met by blocks of 3 and 4."""
    return F.gelu(torch.cat([a, c], 1) + torch.cat([c, a], 1))


def _unpool(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)[:, None]
    y, places = F.max_pool1d(h, 2, return_indices=True)
    return m.b(F.max_unpool1d(y, places, 2)[:, 0])
