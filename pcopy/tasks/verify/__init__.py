"""What is read for its digest, and compared."""
