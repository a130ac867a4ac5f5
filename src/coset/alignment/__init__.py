"""Alignment: the element of a symmetry that brings one solution nearest to another."""
