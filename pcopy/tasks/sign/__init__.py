"""The signature and the manifest of a dataset."""
