"""Rossi, Singh, Hannagan: On permutation symmetries in Bayesian neural network posteriors (2023)."""

FIGURES = (
    "fig1",
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "fig6",
    "fig7",
    "fig8",
    "fig9",
    "fig10",
    "fig11",
    "fig12",
    "figA13",
    "figA14",
    "figA15",
    "figA16",
)
"""In the order in which they are listed; others come after them."""
