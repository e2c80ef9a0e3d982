"""Tasks that compute the signature (the digest of a whole dataset) and the manifest (a list of its items with
digests).
"""
