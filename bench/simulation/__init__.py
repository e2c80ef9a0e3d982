"""Whole jobs of thousands of ranks in virtual time: what they run, the event loop, and how the results are shown."""
