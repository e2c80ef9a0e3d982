"""Base classes, values and services that all kinds of tasks use."""
