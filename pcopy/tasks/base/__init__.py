"""What all kinds of tasks use: their base classes, the values in their fields, and the state of a rank."""
