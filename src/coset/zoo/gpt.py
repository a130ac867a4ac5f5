"""Small causal language model: GPT-2 (Radford et al. 2019) by default, Llama with its options on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.core.errors import ModelError
from coset.zoo.argument_checks import require_choice, require_multiple, require_positive
from coset.zoo.rope import Rope


class CausalAttention(nn.Module):
    """Causal grouped-query attention (Ainslie et al. 2023), `[N, T, dim] -> [N, T, dim]`.

    Query head `h` reads key and value head `h // (heads / kv_heads)`; `kv_heads = heads` is full attention.
    """

    def __init__(self, dim: int, heads: int, kv_heads: int, rope: Rope | None) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.rope = rope or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q = self.rope(self._heads(self.query(x)))
        k = self.rope(self._heads(self.key(x)))
        v = self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """`[N, T, H head_dim] -> [N, H, T, head_dim]`."""
        n, t, _ = x.shape
        return x.reshape(n, t, -1, self.head_dim).transpose(1, 2)


class GeluMLP(nn.Module):
    """`W_2 gelu(W_1 x)` with `4 dim` hidden units; `[..., dim] -> [..., dim]`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class SwiGLU(nn.Module):
    """`W_d (silu(W_g x) * W_u x)` (Shazeer 2020); `8 dim / 3` hidden units keep the parameter count."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = 8 * dim // 3
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def _norm(kind: str, dim: int) -> nn.Module:
    return nn.RMSNorm(dim, eps=1e-6) if kind == "rms" else nn.LayerNorm(dim)


class GPTBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; `[N, T, dim]`."""

    def __init__(self, dim: int, attention: CausalAttention, swiglu: bool, norm: str) -> None:
        super().__init__()
        self.norm1 = _norm(norm, dim)
        self.attention = attention
        self.norm2 = _norm(norm, dim)
        self.mlp = SwiGLU(dim) if swiglu else GeluMLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Causal language model: tokens `[N, T]`, logits `[N, T, vocab]`; GPT-2 by default, Llama with its options on.

    Token embedding, pre-norm blocks, norm, head. No linear layer has a bias. Embeddings start at N(0, 0.02^2), the
    rest at torch's defaults.

    Args:
        vocab: how many different tokens.
        context: the most tokens of a sequence.
        dim: width of the tokens, a multiple of `heads`.
        depth: how many blocks.
        heads: of the attention, a multiple of `kv_heads`.
        kv_heads: heads of keys and values, for grouped-query attention; None is all of `heads`.
        rope: turn queries and keys (RoPE) instead of adding learned positions.
        swiglu: SwiGLU in place of the GELU MLP.
        tied: read the logits off the token embedding.
        norm: layer norm ("ln") or root mean square norm ("rms").

    Raises:
        ModelError: a number is not positive, does not divide, or there is no such norm.

    Example:
        >>> coset.zoo.GPT(depth=1)(torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        vocab: int = 64,
        context: int = 64,
        dim: int = 64,
        depth: int = 2,
        heads: int = 4,
        kv_heads: int | None = None,
        rope: bool = False,
        swiglu: bool = False,
        tied: bool = True,
        norm: str = "ln",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        require_positive("GPT", vocab=vocab, context=context, dim=dim, depth=depth)
        require_positive("GPT", heads=heads, kv_heads=kv_heads)
        require_multiple("GPT", "dim", dim, "heads", heads)
        require_multiple("GPT", "heads", heads, "kv_heads", kv_heads)
        require_choice("GPT", "norm", norm, ("ln", "rms"))
        head_dim = dim // heads
        if rope:
            require_multiple("GPT", "dim / heads", head_dim, "RoPE pair", 2)
        self.vocab = vocab
        self.context = context
        self.embedding = nn.Embedding(vocab, dim)
        self.positions = None if rope else nn.Parameter(torch.empty(context, dim))
        self.blocks = nn.Sequential(
            *(
                GPTBlock(
                    dim,
                    CausalAttention(dim, heads, kv_heads, Rope(context, head_dim) if rope else None),
                    swiglu,
                    norm,
                )
                for _ in range(depth)
            )
        )
        self.norm = _norm(norm, dim)
        self.head = None if tied else nn.Linear(dim, vocab, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew; the inner modules have a method of this name themselves."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `[N, T, vocab]`.

        Args:
            tokens: `[N, T]` int64, T no more than `context`.
        """
        t = tokens.shape[1]
        if t > self.context:
            raise ModelError(f"GPT: {t} tokens do not fit the context of {self.context}.")
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[:t]
        x = self.norm(self.blocks(x))
        # Tied without a second module, so that the shared tensor has one name in the state.
        return F.linear(x, self.embedding.weight if self.head is None else self.head.weight)

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Uniform random tokens `[batch, min(context, 16)]` on the CPU.

        Args:
            batch: how many sequences.
            generator: what they come from; None is torch's own.
        """
        return (torch.randint(self.vocab, (batch, min(self.context, 16)), generator=generator),)
