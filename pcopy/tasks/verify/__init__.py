"""Tasks that read items for their digests, and compare copies with them."""
