"""Tasks that compare two trees side by side by chosen properties (``pverify A B``)."""
