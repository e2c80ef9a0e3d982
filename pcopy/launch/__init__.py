"""Start and control of the ranks of a prepared job."""
