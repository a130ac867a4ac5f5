"""Blocks cover a tensor exactly once, and say what each dimension indexes."""

from __future__ import annotations

import pytest
import torch
from alignment_nets import network

from coset.symmetries.group import Axis, Concat, Fixed, Interleave, Product, Units, blocks, labels

H, I, J = Units("h", 2), Units("i", 3), Units("j", 4)  # noqa: E741
AXES: dict[str, tuple[Axis, ...]] = {
    "plain": (I, J),
    "product": (Product((H, I)), J),
    "concat": (Concat((I, J, Fixed(2))), H),
    "interleave": (Interleave((J, J)),),
    "blocks of products": (Concat((Product((H, I)), Product((H, J)))), Fixed(3)),
    "a block in a product": (Product((Concat((H, I)), J)), I),
    "an inner block": (Product((J, Concat((H, I)))),),
    "lanes in a block": (Concat((Interleave((I, I)), J)), Product((H, Interleave((J, J))))),
    "nothing": (),
}


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("lead", [0, 2])
def test_blocks_cover_the_tensor_once(name: str, lead: int) -> None:
    axes = AXES[name]
    tensor = torch.arange(4.0**lead * torch.Size([axis.size for axis in axes]).numel())
    tensor = tensor.reshape([4] * lead + [axis.size for axis in axes])
    views = blocks(tensor, axes, lead)
    assert sorted(x for block in views for x in block.values.flatten().tolist()) == tensor.flatten().tolist()
    for block in views:
        assert block.values.dim() == lead + len(block.labels)
        assert block.values.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert tuple(block.labels for block in views) == labels(axes)


def test_labels_name_units_and_axes() -> None:
    (first, second) = labels(AXES["blocks of products"])
    assert [(label.units, label.axis) for label in first] == [("h", 0), ("i", 0), ("", 1)]
    assert [(label.units, label.axis) for label in second] == [("h", 0), ("j", 0), ("", 1)]


@pytest.mark.parametrize("name", ["vit", "llama", "resnet"])
def test_moving_a_tensor_moves_its_blocks(name: str) -> None:
    """A set that lies over no other permutes the dimensions it labels."""
    _, sym = network(name)
    for group in [group for group in sym.groups if not group.over][:4]:
        p = torch.randperm(group.size, generator=torch.Generator().manual_seed(0))
        element = sym.element({group.name: p})
        for tensor, _ in group.members[:4]:
            x = torch.randn([axis.size for axis in sym.axes[tensor]])
            image = sym.act(element, {tensor: x})[tensor]
            for before, after in zip(blocks(x, sym.axes[tensor]), blocks(image, sym.axes[tensor]), strict=True):
                expected = before.values
                for d in before.where(group.name):
                    expected = expected.index_select(d, p)
                assert torch.equal(expected, after.values)
