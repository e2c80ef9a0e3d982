"""Helpers of the tests. None of them calls the code under test to judge it."""
