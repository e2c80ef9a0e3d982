"""Tasks that change modes, owners and ACLs of existing items (pchmod)."""
