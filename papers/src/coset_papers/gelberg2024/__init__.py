"""Gelberg, van der Ouderaa, van der Wilk, Gal: Variational inference failures under model symmetries (2024)."""

FIGURES = ("fig2", "fig3", "fig4", "fig5", "table1", "table2", "table3", "information", "symmetrization", "theorem31")
"""In the order in which they are listed; others come after them."""
