"""Tests of faults, injected and real: the outcome for every pair of an operation and an error."""
