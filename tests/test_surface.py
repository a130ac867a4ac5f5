"""What `import coset` alone gives."""

import subprocess
import sys

import pytest

import coset


def test_names_and_parts_need_no_import_of_their_own() -> None:
    code = """
import sys, coset
assert "torch" not in sys.modules
coset.alignment, coset.core, coset.open_state, coset.plot.save
coset.assignment.solve, coset.data.load, coset.flow, coset.populations, coset.state.of, coset.zoo.build
assert "coset_papers" not in sys.modules
assert all(getattr(coset, name) is not None for name in dir(coset))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'coset' has no attribute 'files_of_mine'"):
        coset.files_of_mine  # noqa: B018
