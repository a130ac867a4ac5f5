"""Objects show themselves in a few lines."""

from coset.core.show import LINES, WIDTH, Shown, Table


class Thing(Shown):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def _shown(self) -> Table:
        return Table("Thing", [(f"row {k}", k * 1000, "x" * 200) for k in range(self.rows)])


def test_long_tables_are_cut_and_counted() -> None:
    lines = repr(Thing(50)).splitlines()
    assert len(lines) == LINES and max(map(len, lines)) <= WIDTH
    assert lines[0] == "Thing" and lines[-1].strip() == "... and 40 more"


def test_columns_are_aligned_and_numbers_have_commas() -> None:
    lines = repr(Thing(11)).splitlines()
    assert len(lines) == LINES
    assert lines[2].startswith("  row 1   1,000   xxx") and lines[11].startswith("  row 10  10,000  xxx")


def test_a_notebook_shows_every_row() -> None:
    text = Thing(50)._repr_html_()
    assert text.count("<tr>") == 50
    assert "&lt;b&gt;" in Table("<b>").html()


def test_numbers_in_words() -> None:
    assert Table("t", [("a", 0.123456789), ("b", True), ("c", "two\nlines")]).text().splitlines()[1:] == [
        "  a  0.123457",
        "  b  True",
        "  c  two lines",
    ]
