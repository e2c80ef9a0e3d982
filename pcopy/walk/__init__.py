"""Listing, filtering, testing and summing of the items in directory trees."""
