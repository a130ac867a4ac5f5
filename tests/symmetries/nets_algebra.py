"""Matrix functions, Fourier transforms, complex weights, choices: ops that mix or order some axes only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, conv, family, lin, par, simple
from torch import Tensor, nn


def _eye(x: Tensor, size: int = 4) -> Tensor:
    return torch.eye(size, dtype=x.dtype)


simple("inverse_alone", "4*2", lambda m, x: m.b(m.a(x) @ torch.linalg.inv(m.w)), w=lambda: par(4, 4))
simple("inverse_shifted", "4", lambda m, x: m.b(m.a(x) @ torch.linalg.inv(m.w + 3 * _eye(x))), w=lambda: par(4, 4))
simple("solve", "4*2", lambda m, x: m.b(torch.linalg.solve(m.w, m.a(x).t()).t()), w=lambda: par(4, 4))
simple("solve_vector", "4*2", lambda m, x: m.b(torch.linalg.solve(m.w, m.a(x).mean(0))), w=lambda: par(4, 4))
simple(
    "solve_from_the_right", "4*2",
    lambda m, x: m.b(torch.linalg.solve(m.w, m.a(x), left=False)), w=lambda: par(4, 4),
)  # fmt: skip
simple("pseudo_inverse", "4 5", lambda m, x: m.b(m.a(x) @ torch.linalg.pinv(m.w)), w=lambda: par(5, 4),
       b=lambda: lin(5, 2))  # fmt: skip
simple("determinant", "4", lambda m, x: m.b((m.a(x) @ m.w).tanh()) + torch.linalg.det(m.w), w=lambda: par(4, 4))
simple("log_determinant", "4", lambda m, x: m.b(m.a(x) @ m.w) + torch.linalg.slogdet(m.w)[1], w=lambda: par(4, 4))
simple("matrix_exponential", "4", lambda m, x: m.b(m.a(x) @ torch.matrix_exp(m.w)), w=lambda: par(4, 4))
simple("matrix_power", "4", lambda m, x: m.b(m.a(x) @ torch.linalg.matrix_power(m.w, 3)), w=lambda: par(4, 4))
simple(
    "cholesky_factors", "4 3/4",
    lambda m, x: m.b((torch.linalg.cholesky(m.w @ m.w.mT + 0.1 * _eye(x, 2))[:, 1, 0] * m.a(x)).tanh()),
    w=lambda: par(4, 2, 3),
)  # fmt: skip
simple("singular_values", "4*2", lambda m, x: m.b(m.a(x) @ m.w) + torch.linalg.svdvals(m.w).tanh().sum(),
       w=lambda: par(4, 4))  # fmt: skip
simple("eigenvalues", "4 5", lambda m, x: m.b((m.a(x) @ m.w).tanh()) + torch.linalg.eigvalsh(m.w @ m.w.t())[0],
       w=lambda: par(4, 5), b=lambda: lin(5, 2))  # fmt: skip
simple("trace_of_units", "4", lambda m, x: m.b((m.a(x) @ m.w).tanh()) + m.w.trace(), w=lambda: par(4, 4))
simple("diagonal_of_units", "4", lambda m, x: m.b((m.a(x) @ m.w).tanh() + torch.diagonal(m.w)), w=lambda: par(4, 4))
simple("diagonal_matrix", "4", lambda m, x: m.b(m.a(x).tanh() @ torch.diag_embed(m.w)), w=lambda: par(4))
simple("diagonal_by_einsum", "4", lambda m, x: m.b(torch.einsum("bi,ii->bi", m.a(x).tanh(), m.w)), w=lambda: par(4, 4))
simple("cross_product", "4", lambda m, x: m.b(torch.linalg.cross(m.a(x).t(), m.c(x).t()).t()), c=lambda: lin(3, 4))
simple("distances_to_centres", "4 5", lambda m, x: m.b(torch.cdist(m.a(x), m.centres)), centres=lambda: par(5, 4),
       b=lambda: lin(5, 2))  # fmt: skip
simple("distance", "4", lambda m, x: m.b(m.a(x)).tanh() + torch.dist(m.a(x), m.c), c=lambda: par(4))


def kalman_filter() -> Sample:
    """Units of the state, those that observe it, and of each noise its own."""

    def forward(m: Net, x: Tensor) -> Tensor:
        state, spread, one = m.start, m.p @ m.p.t(), _eye(x)
        for z in x:
            state, spread = m.step @ state, m.step @ spread @ m.step.t() + m.q @ m.q.t()
            seen = m.watch @ spread @ m.watch.t() + m.r @ m.r.t()
            gain = spread @ m.watch.t() @ torch.linalg.inv(seen)
            state, spread = state + gain @ (m.sense(z) - m.watch @ state), (one - gain @ m.watch) @ spread
        return m.out(state)

    parts = {"p": par(4, 4), "q": par(4, 4), "step": par(4, 4), "watch": par(5, 4), "r": par(5, 5), "start": par(4)}
    return Net(forward, sense=lin(3, 5), out=lin(4, 2), **parts), (torch.randn(3, 3),)


add("kalman_filter", "4*3 5*2", kalman_filter, odd=True)
simple("fourier_over_tokens", "4", lambda m, x: m.b(torch.fft.fft(m.a(x), dim=0).real))
simple("fourier_of_two_axes", "4", lambda m, x: m.b(torch.fft.rfft2(m.a(x)[:, None], dim=(0, 1)).abs()))
simple("fourier_by_numbers", "", lambda m, x: m.b(torch.view_as_real(torch.fft.fft(m.a(x))).sum(-1).tanh()))


def fourier_neural_operator() -> Sample:
    """Complex weights mix the channels of each of the lowest waves."""

    def forward(m: Net, x: Tensor) -> Tensor:
        waves = torch.fft.rfft(m.lift(x), dim=-1)[..., :3]
        mixed = torch.fft.irfft(torch.einsum("bcw,cow->bow", waves, m.waves), n=x.shape[-1], dim=-1)
        return m.out(F.gelu(mixed + m.skip(m.lift(x))))

    weights = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.complex128))
    nets = {"lift": nn.Conv1d(3, 4, 1), "skip": nn.Conv1d(4, 4, 1), "out": nn.Conv1d(4, 2, 1)}
    return Net(forward, waves=weights, **nets), (torch.randn(2, 3, 8),)


add("fourier_neural_operator", "4*2", fourier_neural_operator, odd=True)


@family("4")
def global_filter() -> Sample:
    """A complex gain for each wave of each channel, held as pairs of numbers."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        filtered = torch.fft.rfft2(h) * torch.view_as_complex(m.gains)
        return m.b(F.gelu(h + torch.fft.irfft2(filtered, s=h.shape[-2:])))

    return Net(forward, a=conv(3, 4, 1), b=conv(4, 2, 1), gains=par(4, 4, 3, 2)), (torch.randn(2, 3, 4, 4),)


@family("4")
def state_space_kernel() -> Sample:
    """A long convolution by FFT, whose kernel is a sum of decaying complex exponentials, as S4D has them."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h, length = m.a(x), x.shape[1]
        poles = -torch.exp(m.decay) + 1j * m.frequency
        kernel = 2 * torch.einsum("cn,cnt->ct", m.weight, torch.exp(poles[..., None] * torch.arange(length))).real
        spectrum = torch.fft.rfft(h.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return m.b(F.gelu(torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2) + h))

    weight = nn.Parameter(torch.randn(4, 1, dtype=torch.complex128))
    return Net(forward, a=lin(3, 4), b=lin(4, 2), weight=weight, decay=par(4, 1), frequency=par(4, 1)), (
        torch.randn(2, 5, 3),
    )


simple("complex_matrix", "4*2", lambda m, x: m.b(torch.view_as_real(m.a(x).to(m.w.dtype) @ m.w)[..., 0]),
       w=lambda: nn.Parameter(torch.randn(4, 4, dtype=torch.complex128)))  # fmt: skip
simple("polar_numbers", "4", lambda m, x: m.b(torch.polar(m.a(x).exp(), m.c(x)).real), c=lambda: lin(3, 4))
simple("sinc", "4", lambda m, x: m.b(torch.sinc(m.a(x))))
simple("cummax_tokens", "4", lambda m, x: m.b(m.a(x).cummax(0)[0]))
simple("cummax_places", "4", lambda m, x: m.b(m.a(x).cummax(0)[1].to(x.dtype)))
simple("count_of_units", "4", lambda m, x: m.b(m.a(x).relu()) + torch.linalg.vector_norm(m.a(x).relu(), 0, -1)[:, None])
simple("largest_of_units", "4", lambda m, x: m.b(m.a(x)) + torch.linalg.vector_norm(m.a(x), torch.inf, -1)[:, None])
simple("one_over_relu", "4", lambda m, x: m.b(1 / (m.a(x).relu() + 1e-3)))
simple("dense_as_sparse", "4", lambda m, x: m.b(torch.sparse.mm(x.to_sparse(), m.w).tanh()), w=lambda: par(3, 4))
simple("bag_of_maxima", "4", lambda m, x: m.b(F.embedding_bag(x, m.t, mode="max")), x=torch.randint(5, (3, 2)),
       t=lambda: par(5, 4))  # fmt: skip
simple("pooled_places", "4", lambda m, x: m.b(_places(m.a(x)).sum(-1)))
simple("unpooled_channels", "4", lambda m, x: m.b(_unpooled(m.a(x)).sum(-1).tanh()))
simple("values_inside_heads", "2 3/2",
       lambda m, x: m.d(m.c(x).view(-1, 2, 3).max(-1)[0] + m.c(x).view(-1, 2, 3).topk(2, -1)[0].sum(-1)),
       c=lambda: lin(3, 6), d=lambda: lin(2, 2))  # fmt: skip
simple("sorted_inside_heads", "2 3/2", lambda m, x: m.d(m.c(x).view(-1, 2, 3).sort(-1)[0].flatten(1).relu()),
       c=lambda: lin(3, 6), d=lambda: lin(6, 2))  # fmt: skip
simple("registers_beside_the_first", "4*2", lambda m, x: m.b(_attend(_with_registers(m, x))[:, 0]),
       a=lambda: lin(3, 4), r=lambda: par(5, 4))  # fmt: skip
simple("equal_slices", "2*3", lambda m, x: m.b(torch.cat([torch.ones_like(m.a(x)[:, :2]), m.a(x)[:, 2:]], -1).tanh()))
simple("ones_shaped_as_a_slice", "4", lambda m, x: m.c(torch.cat([torch.ones_like(m.a(x)[:, :1]), m.a(x)], 1).tanh()),
       c=lambda: lin(5, 2))  # fmt: skip
simple("zeros_shaped_as_a_chunk", "4",
       lambda m, x: m.b(torch.where(m.a(x) > 0, m.a(x), torch.zeros_like(m.a(x).chunk(4, 1)[0]))))  # fmt: skip
simple("stacked_places", "4*2",
       lambda m, x: m.w[torch.stack([m.a(x).argmax(-1), (m.c(x) > 0).sum(-1)], -1).unbind(-1)[0]] + m.b(m.c(x).tanh()),
       w=lambda: par(4, 2), c=lambda: lin(3, 4))  # fmt: skip
simple("stacked_places_as_numbers", "4",
       lambda m, x: m.w[torch.stack([m.a(x).argmax(-1), (m.c(x) > 0).sum(-1)], -1)].sum(1) + m.b(m.c(x).tanh()),
       w=lambda: par(5, 2), c=lambda: lin(3, 4))  # fmt: skip


def _places(h: Tensor) -> Tensor:
    return F.max_pool1d(h.t()[None], 2, 1, return_indices=True)[1].to(h.dtype)


def _unpooled(h: Tensor) -> Tensor:
    return F.max_unpool1d(*F.max_pool1d(h.t()[None], 2, 1, return_indices=True), 2, 1)


def _with_registers(m: Net, x: Tensor) -> Tensor:
    return torch.cat([m.r.expand(len(x), 5, 4), m.a(x)[:, None]], 1)


def _attend(h: Tensor) -> Tensor:
    return (h @ h.transpose(1, 2)).softmax(-1) @ h


@family("4")
def hand_made_relu() -> Sample:
    """h (h > 0)."""
    return Net(lambda m, x: m.b(m.a(x) * (m.a(x) > 0)), a=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4")
def hand_made_leaky_relu() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(torch.where(h > 0, h, 0.1 * h))

    return Net(forward, a=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4")
def thresholded_at_zero() -> Sample:
    return Net(lambda m, x: m.b(F.threshold(m.a(x), 0, 0)), a=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4")
def largest_of_it_and_a_constant() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(torch.maximum(m.a(x), torch.tensor(0.0, dtype=x.dtype)))

    return Net(forward, a=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4 5")
def overwritten_where_negative() -> Sample:
    """Zeros are written into one hidden layer, which has factors then, and another number into the other."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h, g = m.a(x), m.c(x)
        h[h < 0] = 0
        g[g < 0] = 0.3
        return m.b(h) + m.d(g)

    parts = {"a": lin(3, 4), "b": lin(4, 2), "c": lin(3, 5), "d": lin(5, 2)}
    return Net(forward, **parts), (torch.randn(3, 3),)


@family("4")
def above_another() -> Sample:
    """A comparison of two units that are scaled alike."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h, g = m.a(x), m.c(x)
        return m.b(torch.where(h > g, h, -2 * g))

    return Net(forward, a=lin(3, 4), c=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4")
def not_equal_to_zero() -> Sample:
    """Where a ReLU is not zero: neither its scale nor its sign."""
    return Net(lambda m, x: m.b(m.a(x).relu() * (m.a(x).relu() != 0)), a=lin(3, 4), b=lin(4, 2)), (torch.randn(3, 3),)


@family("4")
def weights_of_a_bag() -> Sample:
    def forward(m: Net, x: Tensor, weights: Tensor) -> Tensor:
        return m.b(F.embedding_bag(x, m.t, mode="sum", per_sample_weights=weights).relu())

    return Net(forward, t=par(5, 4), b=lin(4, 2)), (torch.randint(5, (3, 2)), torch.randn(3, 2))
