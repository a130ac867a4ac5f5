"""Norm statistics and REPAIR: against plain passes in training mode, and against the statistics of the ends."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import StateError, Symmetry
from coset.alignment.repair import recompute_norms, repair
from coset.core import state as states
from coset.data import Split, load
from coset.zoo import build

DIGITS = "mlp:64-128-128-128-10"


def images(n: int, seed: int = 0) -> Split:
    return Split(torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed)), torch.zeros(n))


def net(spec: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build(spec)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return states.allclose(a, b, 0, 0)


# --- running statistics ------------------------------------------------------------------------------------


def plain(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """Running statistics after a pass in training mode with cumulative averages."""
    trained = copy.deepcopy(model).train()
    for module in trained.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for inputs in batches:
            trained(inputs)
    return states.of(trained)


def test_recomputed_norms_are_those_of_a_pass_in_training_mode() -> None:
    model, split = net("resnet20:width=0.25"), images(24)
    model.train()
    with torch.no_grad():
        model(5 + split.inputs)  # other statistics before
    state = states.of(model)
    before = {name: x.clone() for name, x in state.items()}
    repaired = recompute_norms(model, state, split)
    assert states.allclose(repaired, plain(model, [split.inputs]), 1e-4, 1e-5)
    assert not states.allclose(repaired, state, 1e-2, 1e-2)
    assert model.training and same(states.of(model), before) and same(state, before)


def test_several_batches_are_averaged() -> None:
    model, split = net("resnet20:width=0.25"), images(24)
    repaired = recompute_norms(model, states.of(model), split, batch_size=7)
    counts = {int(x) for name, x in repaired.items() if name.endswith("num_batches_tracked")}
    assert counts == {4}
    # What enters the first norm does not depend on the batch, and four batches of six count alike.
    one = plain(model, [split.inputs])
    torch.testing.assert_close(repaired["stem_norm.running_mean"], one["stem_norm.running_mean"])
    assert not torch.equal(repaired["stem_norm.running_var"], one["stem_norm.running_var"])
    # Batches do not follow the order of the data, which may be sorted.
    in_order = plain(model, list(split.inputs.split(6)))
    assert not torch.allclose(repaired["stem_norm.running_var"], in_order["stem_norm.running_var"], rtol=1e-6)


def test_no_batch_is_a_single_example() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    data = (torch.randn(9, 3), torch.zeros(9))
    repaired = recompute_norms(model, states.of(model), data, batch_size=8)
    assert int(repaired["1.num_batches_tracked"]) == 2


def test_other_modules_are_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    data = (torch.randn(50, 3), torch.zeros(50))
    repaired = recompute_norms(model, states.of(model), data)
    torch.testing.assert_close(repaired["1.running_mean"], data[0].mean(0))
    torch.testing.assert_close(repaired["1.running_var"], data[0].var(0))


def test_instance_norms_are_averaged_too() -> None:
    model = nn.InstanceNorm1d(3, track_running_stats=True)
    data = (torch.randn(12, 3, 7), torch.zeros(12))
    repaired = recompute_norms(model, states.of(model), data, batch_size=3)
    torch.testing.assert_close(repaired["running_mean"], data[0].mean((0, 2)))
    torch.testing.assert_close(repaired["running_var"], data[0].var(2).mean(0))


def test_a_norm_that_is_called_twice_averages_both() -> None:
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(3, 3), norm, nn.Linear(3, 3), norm)
    data = (torch.randn(10, 3), torch.zeros(10))
    repaired = recompute_norms(model, states.of(model), data)
    first = model[0](data[0])
    second = model[2]((first - first.mean(0)) / first.var(0, correction=0).sqrt())
    torch.testing.assert_close(repaired["1.running_mean"], (first.mean(0) + second.mean(0)) / 2, rtol=1e-3, atol=1e-4)
    assert torch.equal(repaired["1.running_mean"], repaired["3.running_mean"])
    assert int(repaired["3.num_batches_tracked"]) == 2


def test_a_permuted_network_has_permuted_statistics() -> None:
    model, split = net("resnet20:width=0.25"), images(12)
    state = states.of(model)
    sym = symmetry("resnet20:width=0.25")
    g = sym.random(torch.Generator().manual_seed(0))
    repaired = recompute_norms(model, sym.act(g, state), split)
    assert states.allclose(repaired, sym.act(g, recompute_norms(model, state, split)), 1e-4, 1e-5)


def test_without_running_statistics_the_state_is_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    state = states.of(model)
    repaired = recompute_norms(model, state, (torch.randn(4, 3), torch.zeros(4)))
    assert same(repaired, state) and all(repaired[name].data_ptr() != x.data_ptr() for name, x in state.items())


# --- REPAIR ------------------------------------------------------------------------------------------------


def outputs(model: nn.Module, state: dict[str, Tensor], inputs: Tensor, layers: list[str]) -> dict[str, Tensor]:
    """layer -> [2, units], mean and deviation."""
    moments: dict[str, Tensor] = {}

    def listen(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, __: object, y: Tensor) -> None:
            units = (y if y.dim() == 2 else y.movedim(1, -1)).flatten(0, -2).double()
            moments[name] = torch.stack([units.mean(0), units.std(0, correction=0)])

        return model.get_submodule(name).register_forward_hook(hook)

    handles = [listen(name) for name in layers]
    with torch.no_grad():
        states.call(model, state, inputs)
    for handle in handles:
        handle.remove()
    return moments


@functools.cache
def symmetry(spec: str) -> Symmetry:
    model = build(spec)
    inputs = torch.randn(2, 64) if spec == DIGITS else torch.randn(2, 3, 8, 8)
    return coset.symmetry(model, (inputs,), verify=False)


def ends(spec: str) -> tuple[nn.Module, Symmetry, list[dict[str, Tensor]]]:
    return net(spec), symmetry(spec), [states.of(net(spec, seed)) for seed in (0, 1)]


@pytest.mark.parametrize("weights", [None, [3.0, 1.0]])
@pytest.mark.parametrize("spec", ["mlp:192-20-16-5", "resnet20:width=0.25,norm=none"])
def test_repaired_units_have_the_average_statistics_of_the_ends(spec: str, weights: list[float] | None) -> None:
    split = images(40)
    model, sym, (a, b) = ends(spec)
    t = 0.5 if weights is None else 0.25
    merged = states.lerp(a, b, t)
    before = {name: x.clone() for name, x in merged.items()}
    repaired = repair(model, merged, [a, b], sym, split, weights)
    assert same(merged, before)
    head = "layers.2" if spec.startswith("mlp") else "head"
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and name != head]
    first, second, merged_outputs = (outputs(model, s, split.inputs, layers) for s in (a, b, repaired))
    for name in layers:
        torch.testing.assert_close(merged_outputs[name], (1 - t) * first[name] + t * second[name], rtol=1e-3, atol=1e-4)
    assert torch.equal(repaired[f"{head}.weight"], merged[f"{head}.weight"])


def test_an_end_needs_no_repair() -> None:
    split = images(30)
    model, sym, (a, _) = ends("mlp:192-20-16-5")
    assert states.allclose(repair(model, a, [a, a], sym, split), a, 1e-5, 1e-6)


def test_several_batches_are_nearly_as_good_as_one() -> None:
    split = images(800)
    model, sym, (a, b) = ends("mlp:192-20-16-5")
    merged = states.lerp(a, b, 0.5)
    whole = repair(model, merged, [a, b], sym, split, batch_size=800)
    parts = repair(model, merged, [a, b], sym, split, batch_size=200)
    assert float(states.norm(states.sub(parts, whole))) < 0.05 * float(states.norm(states.sub(merged, whole)))


def test_layers_that_cannot_take_a_shift_or_share_tensors_are_left_alone() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.free, self.bare = nn.Linear(3, 6), nn.Linear(6, 5, bias=False)
            self.one, self.two, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.bare(self.free(x).relu()).relu()
            out: Tensor = self.head(self.two(self.one(x).tanh()).tanh())
            return out

    torch.manual_seed(0)
    model, inputs = Net(), torch.randn(20, 3)
    a, b = states.of(model), states.of(Net())
    sym = coset.symmetry(model, (inputs,))
    merged = states.lerp(a, b, 0.5)
    repaired = repair(model, merged, [a, b], sym, (inputs, torch.zeros(20)))
    changed = {name for name, x in merged.items() if not torch.equal(x, repaired[name])}
    assert changed == {"free.weight", "free.bias"}


def test_dead_layers_stay_finite() -> None:
    split = images(30)
    model, sym, (a, b) = ends("mlp:192-20-16-5")
    merged = states.lerp(a, b, 0.5)
    merged["layers.0.weight"][:] = 0.0
    merged["layers.0.bias"][:] = -1.0
    repaired = repair(model, merged, [a, b], sym, split)
    states.check(repaired)
    assert torch.equal(repaired["layers.0.weight"], merged["layers.0.weight"])


def test_networks_with_batch_norm_get_their_statistics_recomputed() -> None:
    split = images(12)
    model, sym, (a, b) = ends("resnet20:width=0.25")
    merged = states.lerp(a, b, 0.5)
    assert same(repair(model, merged, [a, b], sym, split), recompute_norms(model, merged, split))


def test_weights_must_fit_the_ends() -> None:
    split = images(4)
    model, sym, (a, b) = ends("mlp:192-20-16-5")
    with pytest.raises(StateError, match="2 needs 2 weights"):
        repair(model, a, [a, b], sym, split, [1.0])
    with pytest.raises(StateError, match="at least one"):
        repair(model, a, [], sym, split)


def accuracy(model: nn.Module, state: dict[str, Tensor], split: Split) -> float:
    with torch.no_grad():
        return float((states.call(model, state, split.inputs).argmax(1) == split.targets).double().mean())


def trained(spec: str, split: Split, seed: int) -> dict[str, Tensor]:
    model = net(spec, seed).train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8):
        for inputs, targets in split.minibatches(100, generator):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return states.of(model)


def test_a_merged_network_classifies_better_after_repair() -> None:
    data = load("digits", flatten=True)
    model = net(DIGITS)
    sym = symmetry(DIGITS)
    a, b = trained(DIGITS, data.train, 0), trained(DIGITS, data.train, 1)
    merged = states.lerp(a, b, 0.5)
    repaired = repair(model, merged, [a, b], sym, data.train)
    assert min(accuracy(model, end, data.test) for end in (a, b)) > 0.93
    assert accuracy(model, repaired, data.test) > accuracy(model, merged, data.test) + 0.05


def test_a_network_halfway_to_its_permuted_copy_classifies_better_after_repair() -> None:
    data = load("digits", flatten=True)
    model = net(DIGITS)
    sym = symmetry(DIGITS)
    a = trained(DIGITS, data.train, 0)
    b = sym.act(sym.random(torch.Generator().manual_seed(0)), a)
    merged = states.lerp(a, b, 0.5)
    repaired = repair(model, merged, [a, b], sym, data.train)
    assert accuracy(model, repaired, data.test) > accuracy(model, merged, data.test) + 0.05
