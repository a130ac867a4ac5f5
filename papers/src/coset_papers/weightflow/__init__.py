"""Flow matching over the weights of neural networks modulo their symmetries (a master's thesis)."""

FIGURES = (
    "table1",
    "barriers",
    "table2",
    "averages",
    "novelty",
    "ablation",
    "guidance",
    "width",
    "deep",
    "cnn",
    "scaling",
    "posterior",
)
"""In the order in which they are listed; others come after them."""
