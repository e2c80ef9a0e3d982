"""Tasks that scan directories and create their copies, give the copies their final metadata, and bring file systems to
stable storage.
"""
