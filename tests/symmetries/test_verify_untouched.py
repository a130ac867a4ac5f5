"""Verification leaves models, inputs and random numbers as they were."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin
from samples import attention, mlp
from torch import Tensor, nn

import coset
from coset import SymmetryError


class Busy(nn.Module):
    """Batch norm, dropout, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = lin(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), lin(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(F.gelu(self.norm(self.a(x))))
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.b(h)


def test_the_model_and_its_inputs_are_untouched() -> None:
    model, x = Busy(), torch.randn(4, 3)
    model.norm.eval()
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    before = {n: t.detach().clone() for n, t in tensors.items()}
    flags = {n: m.training for n, m in model.named_modules()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    keys, inputs, fast = sorted(vars(model)), x.clone(), torch.backends.mha.get_fastpath_enabled()
    coset.symmetry(model, (x,))
    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert all(after[n] is tensors[n] and torch.equal(after[n], before[n]) for n in tensors)
    assert {n: m.training for n, m in model.named_modules()} == flags
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert sorted(vars(model)) == keys
    assert torch.equal(x, inputs)
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_random_numbers_are_untouched() -> None:
    model, args = mlp()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    coset.symmetry(model, args).random()
    torch.manual_seed(123)
    coset.symmetry(model, args)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_model_is_put_back_too() -> None:
    model = Net(lambda m, x: m.a(x) if float(x.sum()) > 0 else -m.a(x), a=lin(3, 4)).train()
    with pytest.raises(SymmetryError):
        coset.symmetry(model, (torch.randn(2, 3),))
    assert model.training
    assert model.a.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_still_runs(kind: type[nn.RNNBase]) -> None:
    model = Net(lambda m, x: m.o(m.r(x)[0]), r=kind(3, 4, 2, batch_first=True, bidirectional=True), o=lin(8, 2))
    x = torch.randn(2, 5, 3)
    expected = model(x)
    sym = coset.symmetry(model, (x,))
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    again = copy.deepcopy(model)
    again.load_state_dict(sym.act(sym.random(), model.state_dict()))
    assert torch.allclose(again(x), expected, atol=1e-6)
    assert type(model.r.weight_ih_l0) is nn.Parameter
    assert model.r._flat_weights[0] is model.r.weight_ih_l0


def test_the_same_answer_twice() -> None:
    model, args = attention()
    first, second = coset.symmetry(model, args), coset.symmetry(model, args)
    assert first.to_json() == second.to_json()
    assert first.verification == second.verification
