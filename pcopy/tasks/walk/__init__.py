"""A tree that is walked to tell what is in it."""
