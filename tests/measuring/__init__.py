"""What pcopy is measured with."""
