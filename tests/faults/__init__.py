"""Faults, injected and real: what becomes of every pair of an operation and an error."""
