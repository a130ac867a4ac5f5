"""Tatro, Chen, Das, Melnyk, Sattigeri, Lai: Optimizing mode connectivity via neuron alignment (2020)."""

FIGURES = ("table1", "table2", "table3", "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9")
"""In the order in which they are listed; others come after them."""
