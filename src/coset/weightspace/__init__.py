"""The space of networks modulo their symmetries: canonical forms and the manifold they live on."""
