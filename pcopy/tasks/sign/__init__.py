"""Computation of the signature and the manifest of a dataset."""
