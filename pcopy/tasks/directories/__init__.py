"""Directories: scanned, finished, synced."""
