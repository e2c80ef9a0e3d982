"""What the user meets: arguments, paths, progress and the summary."""
