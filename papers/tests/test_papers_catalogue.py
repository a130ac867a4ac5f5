"""Figures are listed without their files being imported, and each of them is what its file says."""

import subprocess
import sys

import pytest

from coset.core.errors import CosetError
from coset_papers import PAPERS, catalogue, exhibits, find, gelberg2024, rossi2023, tatro2020, titles, weightflow

PACKAGES = {"gelberg2024": gelberg2024, "rossi2023": rossi2023, "tatro2020": tatro2020, "weightflow": weightflow}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_has_its_place(paper: str) -> None:
    names = [name.partition("/")[2] for name in titles() if name.startswith(f"{paper}/")]
    assert names == list(PACKAGES[paper].FIGURES)


def test_titles_are_those_of_the_exhibits() -> None:
    assert {name: exhibit.title for name, exhibit in exhibits().items()} == titles()
    assert len({(exhibit.compute, name) for name, exhibit in exhibits().items()}) == len(titles())


def test_to_list_imports_no_file_of_a_figure() -> None:
    code = (
        "import sys, coset_papers\n"
        "assert len(coset_papers.titles()) > 40\n"
        "assert not {'torch', 'matplotlib', 'coset_papers.gelberg2024.table1'} & sys.modules.keys()\n"
        "coset_papers.find('gelberg2024/table1')\n"
        "assert 'coset_papers.gelberg2024.table1' in sys.modules\n"
        "assert 'coset_papers.gelberg2024.tractable' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    for name in ("gelberg2024/fig99", "fig2", "../tatro2020/fig1"):
        with pytest.raises(CosetError, match=r"There is no figure .* to reproduce, only rossi2023/fig1, "):
            find(name)


def test_a_file_with_a_call_is_a_figure(tmp_path: pytest.TempPathFactory) -> None:
    source = 'import x\n\n\nexhibit(\n    "gelberg2024/new",\n    "what it shows",\n    x.compute,\n    x.draw,\n)\n'
    assert catalogue._calls(source) == [("gelberg2024/new", "what it shows")]
    assert catalogue._calls("def exhibit() -> None:\n    exhibit()\n") == []
