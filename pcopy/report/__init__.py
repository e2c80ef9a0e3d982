"""Output about a job, for people and for programs."""
