"""Helpers of the tests. None of them uses the code under test to check it."""
