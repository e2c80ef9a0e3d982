"""The file system layer: safe paths, metadata, data movement. Paths are opened relative to directory descriptors."""
