"""From a prepared job to ranks that run."""
