"""Checkpoints: what a job needs to go on, kept where a crash leaves it."""
