"""Archives: a tree is laid out and written as one; members are found, and unpacked."""
