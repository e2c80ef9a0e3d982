"""What pcopy does with files, as tasks for the engine: a file holds one kind of task, or some that belong together."""
