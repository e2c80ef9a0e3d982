"""Modes, owners and ACLs of items that are there."""
