"""Whole jobs with crashes, power losses and resumes, in virtual time and on a model file system."""
