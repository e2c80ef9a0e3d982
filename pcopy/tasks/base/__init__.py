"""What all kinds of tasks are made of."""
