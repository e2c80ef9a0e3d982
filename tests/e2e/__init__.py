"""End-to-end tests: complete runs of the programs, started as users start them."""
