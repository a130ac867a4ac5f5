"""Colours of pictures."""

INK, GRID, FIXED = "#222222", "#e4e4e4", "#c9c9c9"
HUES = (
    "#2f6db3",
    "#e0762f",
    "#2e9a63",
    "#c43d4b",
    "#8a5fc0",
    "#1fa3b5",
    "#d9a514",
    "#d0609f",
    "#7d9b2b",
    "#8c5a3c",
)
"""Far apart in hue and alike in weight: the colours of lines, and of families of groups, in this order."""
