import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits

from coset.core.errors import DataError
from coset.data import DataSet, load, names


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


@pytest.fixture(scope="module")
def cancer() -> DataSet:
    return load("breast-cancer")


def fifths(labels: np.ndarray) -> list[int]:
    """The documented test rows, written once more: the 5th, 10th, ... of each class."""
    counts = dict.fromkeys(range(10), 0)
    rows = []
    for row, label in enumerate(labels.tolist()):
        counts[label] += 1
        if counts[label] % 5 == 0:
            rows.append(row)
    return rows


def test_digits_are_normalized_images(digits: DataSet) -> None:
    assert digits.train.inputs.shape == (1442, 1, 8, 8)
    assert digits.test.inputs.shape == (355, 1, 8, 8)
    assert digits.train.inputs.dtype == torch.float32
    assert digits.train.targets.dtype == torch.int64
    assert digits.classes == tuple("0123456789")
    assert digits.target_scale is None
    assert digits.train.inputs.mean().abs() < 2e-4
    assert (digits.train.inputs.std(correction=0) - 1).abs() < 2e-4


def test_digits_are_scikit_learns(digits: DataSet) -> None:
    source = load_digits()
    test = fifths(source.target)
    train = sorted(set(range(1797)) - set(test))
    for split, rows in ((digits.train, train), (digits.test, test)):
        assert split.targets.tolist() == source.target[rows].tolist()
        pixels = 16 * digits.input_scale.invert(split.inputs)[:, 0]
        torch.testing.assert_close(pixels, torch.tensor(source.images[rows]).float(), atol=1e-4, rtol=0)


def test_flat_digits_hold_the_same_numbers(digits: DataSet) -> None:
    flat = load("digits", flatten=True)
    assert torch.equal(flat.train.inputs, digits.train.inputs.reshape(1442, 64))
    raw = flat.input_scale.invert(flat.test.inputs)
    assert torch.equal(raw, digits.input_scale.invert(digits.test.inputs).reshape(355, 64))


def test_breast_cancer_is_standardized_by_its_training_rows(cancer: DataSet) -> None:
    source = load_breast_cancer()
    test = fifths(source.target)
    train = sorted(set(range(569)) - set(test))
    assert (len(cancer.train), len(cancer.test)) == (456, 113)
    assert cancer.classes == ("malignant", "benign")
    assert cancer.train.targets.tolist() == source.target[train].tolist()
    assert cancer.test.targets.tolist() == source.target[test].tolist()
    assert cancer.train.inputs.mean(0).abs().max() < 1e-5
    assert (cancer.train.inputs.std(0, correction=0) - 1).abs().max() < 1e-5
    raw = torch.tensor(source.data[test]).float()
    torch.testing.assert_close(cancer.input_scale.invert(cancer.test.inputs), raw, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cancer.input_scale.apply(raw), cancer.test.inputs, rtol=1e-3, atol=1e-4)


def test_loading_ignores_random_state(cancer: DataSet) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    again = load("breast-cancer")
    assert torch.equal(again.train.inputs, cancer.train.inputs)


def test_the_device_is_that_of_every_tensor() -> None:
    data = load("breast-cancer", device="meta")
    tensors = (*data.train, *data.test, data.input_scale.mean, data.input_scale.std)
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_names_and_options_are_checked() -> None:
    with pytest.raises(DataError, match=r"no data set 'imagenet', only digits, mnist, .*uci/yacht"):
        load("imagenet")
    with pytest.raises(DataError, match="digits has one split only"):
        load("digits", split=0)
    with pytest.raises(DataError, match="mnist has no coarse labels"):
        load("mnist", coarse=True)
    with pytest.raises(DataError, match="'abacus' cannot be used"):
        load("digits", device="abacus")
    assert len(names()) == len(set(names())) == 18


def test_a_data_set_shows_itself(digits: DataSet) -> None:
    assert repr(digits).splitlines()[0] == "DataSet digits"
    assert "1,442 examples" in repr(digits) and "0, 1, 2, 3, 4, 5, 6, 7, ..." in repr(digits)
    assert "<table>" in digits._repr_html_() and "<table>" in digits.train._repr_html_()
    assert repr(digits.input_scale) == "Standardization(1x8x8, mean 0.305, std 0.376)"
    assert repr(digits.to("meta").input_scale) == "Standardization(1x8x8, mean unknown, std unknown)"
