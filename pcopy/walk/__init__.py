"""What can be done with the items of directory trees without changing them: list them, filter them, test them as
find(1) does, and compute sums.
"""
