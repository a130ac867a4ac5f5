"""Optional packages are named with the extra that brings them."""

import sys

import pytest

from coset.core.errors import CosetError
from coset.core.extras import require


def test_a_package_that_is_there_is_imported() -> None:
    assert require("json.decoder", "plot").__name__ == "json.decoder"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CosetError, match=r"needs no_such_package.*pip install 'coset\[plot\]'"):
        require("no_such_package.part", "plot")


def test_what_a_package_itself_lacks_is_no_matter_of_extras(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")  # type: ignore[operator]
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        require("half_installed", "plot")
    sys.modules.pop("half_installed", None)
