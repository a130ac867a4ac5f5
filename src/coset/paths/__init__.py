"""A path is a function from t to a solution: the paths there are, and the loss along them and around."""
