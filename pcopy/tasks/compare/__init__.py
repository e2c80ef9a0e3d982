"""Two trees are looked at side by side, and compared by chosen properties."""
