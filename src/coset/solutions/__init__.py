"""Every solution is a distribution over states: what it is, and how good its predictions are."""
