"""Checkpoints: the records from which an interrupted job is resumed, stored so that a crash leaves them usable."""
