"""The file system layer: safe paths, metadata, data movement. Everything is relative to directory descriptors."""
