"""The real files of MNIST, Fashion-MNIST, UCI and Snelson, where they are."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from coset.core.errors import DataError
from coset.data import hashes, load, mnist
from coset.data.regression import UCI_HASHES

# What torchvision publishes for the packed files.
PUBLISHED = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}
COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_hashes_belong_to_the_published_files(use_real: Callable[[str], Path], name: str) -> None:
    """`load` checks the content's sha256, and that of a download; here the same files also have the published md5."""
    folder = use_real(name)
    for file, md5 in PUBLISHED[name].items():
        packed = (folder / file).read_bytes()
        assert hashlib.md5(packed).hexdigest() == md5
        hashes.verify(packed, file, mnist.PACKED[name][file.removesuffix(".gz")])
    data = load(name)
    assert data.train.inputs.shape == (60000, 1, 28, 28)
    assert data.test.inputs.shape == (10000, 1, 28, 28)
    assert data.train.inputs.mean().abs() < 3e-4
    assert (data.train.inputs.std() - 1).abs() < 3e-4
    assert data.train.targets.bincount().tolist() == COUNTS[name]
    assert data.classes is not None
    assert len(data.classes) == 10


@pytest.mark.parametrize("name", UCI_HASHES)
def test_uci_is_standardized_and_can_be_mapped_back(use_real: Callable[[str], Path], name: str) -> None:
    path = use_real(f"{name}.npz")
    data = load(name, split=2)
    with np.load(path) as raw:
        features, values = raw["X"], raw["y"]
        rows = {"train": raw["index_train"][2].astype(int), "test": raw["index_test"][2].astype(int)}
    assert data.classes is None
    assert data.target_scale is not None
    for part, split in (("train", data.train), ("test", data.test)):
        assert split.inputs.dtype == split.targets.dtype == torch.float32
        assert split.targets.shape == (len(rows[part]), 1)
        error = data.input_scale.invert(split.inputs).numpy() - features[rows[part]]
        scale = data.input_scale.std + data.input_scale.mean.abs()
        assert np.abs(error / scale.numpy()).max() < 1e-5
        targets = data.target_scale.invert(split.targets)[:, 0].numpy()
        np.testing.assert_allclose(targets, values[rows[part]], rtol=1e-5, atol=1e-5)
    for tensor in data.train:
        deviation = tensor.double().std(dim=0, correction=0)
        assert tensor.double().mean(dim=0).abs().max() < 1e-5
        assert torch.all((deviation - 1).abs().minimum(deviation) < 1e-4)


def test_constant_columns_are_zero(use_real: Callable[[str], Path]) -> None:
    use_real("uci/naval.npz")
    data = load("uci/naval")
    assert (data.train.inputs == 0).all(dim=0).nonzero().flatten().tolist() == [8, 11]
    assert torch.isfinite(data.test.inputs).all()


def test_uci_splits_differ_and_are_counted(use_real: Callable[[str], Path]) -> None:
    with np.load(use_real("uci/yacht.npz")) as raw:
        values, rows = torch.tensor(raw["y"]).float(), torch.tensor(raw["index_test"].astype(int))
    for split, index in ((None, 0), (0, 0), (19, 19)):
        data = load("uci/yacht", split=split)
        assert data.target_scale is not None
        targets = data.target_scale.invert(data.test.targets)[:, 0]
        torch.testing.assert_close(targets, values[rows[index]], atol=1e-4, rtol=0)
    with pytest.raises(DataError, match="uci/yacht has the splits 0 to 19, not 20"):
        load("uci/yacht", split=20)
    with pytest.raises(DataError, match="uci/yacht has the splits 0 to 19, not -1"):
        load("uci/yacht", split=-1)


def test_protein_has_five_splits(use_real: Callable[[str], Path]) -> None:
    use_real("uci/protein.npz")
    with pytest.raises(DataError, match="uci/protein has the splits 0 to 4, not 5"):
        load("uci/protein", split=5)


def test_snelson_trains_on_all_points_and_has_no_test_targets(use_real: Callable[[str], Path]) -> None:
    path = use_real("snelson1d.npz")
    data = load("snelson")
    with np.load(path) as raw:
        x, y, grid = raw["X"], raw["Y"], raw["X_test"]
    assert data.target_scale is not None
    np.testing.assert_allclose(data.input_scale.invert(data.train.inputs), x, atol=1e-5)
    np.testing.assert_allclose(data.target_scale.invert(data.train.targets), y, atol=1e-5)
    np.testing.assert_allclose(data.input_scale.invert(data.test.inputs), grid, atol=1e-5)
    assert data.test.targets.shape == (301, 1)
    assert data.test.targets.isnan().all()
    assert data.train.inputs.mean().abs() < 1e-6


@pytest.mark.parametrize("name", ["snelson", "uci/boston"])
def test_what_cannot_be_downloaded_says_so(name: str) -> None:
    with pytest.raises(DataError, match=r"npz is in none of .*not published in this form .*set COSET_DATA"):
        load(name)
