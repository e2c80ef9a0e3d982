"""What pcopy does with files, as tasks for the engine: one kind of task a file."""
