"""Regression on tables: the nine UCI sets with their standard splits, and Snelson's one-dimensional set."""

from __future__ import annotations

import io

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.core.errors import DataError
from coset.data import hashes, search_path
from coset.data.dataset import DataSet, Split, standardize

UCI_HASHES = {
    "uci/boston": "sha256:00a5490b0d80eadfc928b1256c2aa3bd1c21dcd3477758a5b7a7a92d3f58ae69",
    "uci/concrete": "sha256:c0ba38b1a6d815d8672a5556ef0851c4492a7be0c287b7508b9f8db343f6a9de",
    "uci/energy": "sha256:17a935ac212f59a1f53f7e55a48208ad17732b4a22e4d7771452dbfcc0dead80",
    "uci/kin8nm": "sha256:4abf1cadbb508486e6c141214bbe87b4aa087419632c37452bc50c892183e749",
    "uci/naval": "sha256:0eb36ee886fb4bc2d190109088d19b17ff0c627977b741ca8dc206b628be7a75",
    "uci/power": "sha256:e0b9961928eaed7368fbb07b4ad1c8ca2aaf139a8ad75301b8ba554951c8be62",
    "uci/protein": "sha256:01be84e47ff528ebfa59278977f709bc25226412599e5b2ddbb1ac1ab3f9609d",
    "uci/wine-red": "sha256:b1f73f3777aafcaaddadf3b1789df5de58f6a486bc11ec20e2ff79524e237b15",
    "uci/yacht": "sha256:15c1edacd2ea969127e524693975457e402bf30bffd02cb49a25cd83664e959b",
}
SNELSON_HASH = "sha256:6aa70d2868c20099c21e0f14fc165880e78db4ef52a4f7cca1bb0dd8165df494"


def uci(name: str, split: int) -> DataSet:
    """One UCI set with its standard train/test split number `split` (Hernández-Lobato & Adams 2015).

    The file `<name>.npz` holds X (n, d), y (n,), and row numbers index_train and index_test
    (splits, rows), in raw units. There are 20 splits, 5 of protein.
    """
    table = _npz(f"{name}.npz", UCI_HASHES[name])
    splits = len(table["index_train"])
    if not 0 <= split < splits:
        raise DataError(f"{name} has the splits 0 to {splits - 1}, not {split}")
    train = table["index_train"][split].astype(np.int64)
    test = table["index_test"][split].astype(np.int64)
    x, input_scale = standardize(table["X"], train)
    y, target_scale = standardize(table["y"][:, None], train)
    inputs, targets = _tensor(x), _tensor(y)
    return DataSet(
        name,
        Split(inputs[train], targets[train]),
        Split(inputs[test], targets[test]),
        None,
        input_scale,
        target_scale,
    )


def snelson() -> DataSet:
    """Snelson's set: 200 points for training; the 301 test inputs, a grid for plots, have no targets.

    The test targets are NaN, so that no score can be taken for a real one.
    """
    table = _npz("snelson1d.npz", SNELSON_HASH)
    rows = np.arange(len(table["X"]))
    x, input_scale = standardize(np.concatenate([table["X"], table["X_test"]]), rows)
    y, target_scale = standardize(table["Y"], rows)
    inputs = _tensor(x)
    train = Split(inputs[: len(rows)], _tensor(y))
    test = Split(inputs[len(rows) :], torch.full((len(table["X_test"]), 1), torch.nan))
    return DataSet("snelson", train, test, None, input_scale, target_scale)


def _npz(name: str, expected: str) -> dict[str, NDArray[np.float64]]:
    path = search_path.find(name)
    if path is None:
        raise search_path.absent(name, "it is not published in this form for download")
    with np.load(io.BytesIO(hashes.read(path, expected)), allow_pickle=False) as arrays:
        return dict(arrays)


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values).float()
