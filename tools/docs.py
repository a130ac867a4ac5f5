"""The pages of docs/ that are made: coverage.md, merging.md, papers.md and, if there is a record of it, transformers.md
from records, reference.md from docstrings.

python -m tools.docs docs results papers/results
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from coset.core.errors import CosetError
from coset.core.files import atomic_write
from coset.plot import save
from tools.docs_coverage import coverage
from tools.docs_merging import merging
from tools.docs_papers import papers
from tools.docs_reference import reference
from tools.docs_transformers import transformers


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages; 2, and no page, if a file cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Write the pages of results.")
    parser.add_argument("docs", type=Path, help="folder to write the pages and img/ to")
    parser.add_argument("results", type=Path, help="folder with the JSON files of bench/")
    parser.add_argument("papers", type=Path, help="folder with the records of `coset reproduce`")
    options = parser.parse_args(arguments)
    try:
        (merged, pictures), (figures, more) = merging(options.results), papers(options.papers)
        pages = {"coverage.md": coverage(options.results), "merging.md": merged, "papers.md": figures}
        pages["reference.md"] = reference()
        if (measured := transformers(options.results)) is not None:
            pages["transformers.md"] = measured
        (options.docs / "img").mkdir(exist_ok=True)
        for name, figure in (pictures | more).items():
            save(figure, options.docs / "img" / name)
        for name, text in pages.items():
            with atomic_write(options.docs / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except (CosetError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
