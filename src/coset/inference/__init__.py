"""Methods that find solutions, and `fit`, which runs them."""
