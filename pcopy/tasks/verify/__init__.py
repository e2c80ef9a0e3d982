"""Tasks that read items for their digests, and tasks that read copies back and compare them with what was copied."""
