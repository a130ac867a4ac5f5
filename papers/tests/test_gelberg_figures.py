"""Figures of gelberg2024 at their smallest scale, but for those of which other tests have more to say."""

from pathlib import Path

import pytest
from smoke import check, figures

from coset_papers import Settings, reproduce

ELSEWHERE = ("fig2", "fig3", "fig5", "table1", "information", "symmetrization", "theorem31")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as figures share their runs."""
    return tmp_path_factory.mktemp("gelberg2024")


@pytest.mark.parametrize("name", figures("gelberg2024", quick=(), elsewhere=ELSEWHERE))
def test_smoke(name: str, out: Path) -> None:
    check(name, out)


@pytest.mark.slow
def test_verdicts_on_the_network_with_two_weights(out: Path) -> None:
    verdicts = {
        name: [claim["holds"] for claim in reproduce(f"gelberg2024/{name}", Settings(out=out))["claims"]]
        for name in ("fig4", "table3")
    }
    assert verdicts["fig4"][1] and verdicts["table3"][:2] == [True, True]
