"""Inodes with several names."""
