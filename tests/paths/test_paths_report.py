"""The picture and the page of barriers."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from coset import Barrier
from coset.plot import barriers, page, save

T = (0.0, 0.5, 1.0)
SURE = Barrier(T, (0.1, 1.0, 0.3), (0.9, 0.5, 0.8), (0.0, 0.0, 0.0))
UNSURE = Barrier(T, (0.2, 0.3, 0.3), (0.9, 0.85, 0.8), (0.0, 0.1, 0.2))


def test_the_picture_shows_every_barrier(tmp_path: Path) -> None:
    figure = barriers({"naive": SURE, "aligned": UNSURE}, "A and B")
    loss, accuracy = figure.axes
    lines = {tuple(line.get_ydata()) for line in loss.lines}  # type: ignore[arg-type]
    assert lines == {SURE.loss, SURE.endpoints, UNSURE.loss, UNSURE.endpoints}
    assert {tuple(line.get_ydata()) for line in accuracy.lines} == {SURE.accuracy, UNSURE.accuracy}  # type: ignore[arg-type]
    assert len(loss.collections) == 1  # a band where there is an error
    assert [text.get_text() for text in figure.legends[0].texts] == ["naive (barrier 0.8)", "aligned (barrier 0.05)"]
    save(figure, tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 5000


def test_regression_has_one_panel() -> None:
    assert len(barriers({"": Barrier(T, (0.1, 1.0, 0.3))}).axes) == 1


class Tags(HTMLParser):
    """Checks that tags close, and keeps what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data)


def test_the_page_is_complete_in_itself() -> None:
    rows = [{"path": "<naive> & co", "barrier": "0.8000", "ends": "0.1, 0.3"}, {"path": "aligned", "barrier": "0.05"}]
    text = page("A <-> B", rows, [barriers({"naive": SURE}), barriers({"aligned": UNSURE})])
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and tags.texts["h1"] == ["A <-> B"]
    assert tags.texts["th"] == ["path", "barrier", "ends"]
    assert tags.texts["td"] == ["<naive> & co", "0.8000", "0.1, 0.3", "aligned", "0.05"]
    assert len(tags.images) == 2
    for image in tags.images:
        svg = base64.b64decode(image.removeprefix("data:image/svg+xml;base64,"))
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"<script|<link|@import|(src|href)=\"(?!data:)", text)


def test_numbers_stand_on_the_right() -> None:
    text = page("", [{"path": "a1", "barrier": "-1.5e-3", "share": "97.5%"}], [])
    assert text.count('<td class="number">') == 2 and "<figure>" not in text
