"""Every test gets an empty home, no system folder and a net that is a folder; real data only on request."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coset.data import cifar, mnist, search_path, tiny_shakespeare

REPOSITORY = Path(__file__).parents[2]
REAL = Path(os.environ.get("COSET_DATA") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for the net: what is put there can be downloaded."""
    folder = tmp_path / "net"
    folder.mkdir()
    monkeypatch.delenv("COSET_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(search_path, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(mnist, "URLS", dict.fromkeys(mnist.URLS, folder.as_uri()))
    monkeypatch.setattr(cifar, "URL", folder.as_uri())
    monkeypatch.setattr(tiny_shakespeare, "URL", (folder / "input.txt").as_uri())
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets."""
    if not REAL.is_dir():
        pytest.skip("real data sets are not here: set COSET_DATA or put them in ../shared/data")
    return REAL


@pytest.fixture
def use_real(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Call it with the name of a file or folder to let `load` find the real one, whose path it returns."""

    def use(name: str) -> Path:
        if not (real_data / name).exists():
            pytest.skip(f"{name} is not in {real_data}")
        monkeypatch.setenv("COSET_DATA", str(real_data))
        return real_data / name

    return use
