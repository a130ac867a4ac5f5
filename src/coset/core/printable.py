"""Text of files, made fit for a terminal: what would move its cursor or change its colours is spelled out."""

from __future__ import annotations

import re

# Control characters but for the end of a line and a tab, marks that turn the direction of text, other ends of lines,
# and halves of surrogate pairs, which cannot be encoded.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def printable(text: str) -> str:
    """The text with `\\x1b` and the like in place of characters that a terminal obeys and does not show."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
