"""A tree that all ranks visit."""
