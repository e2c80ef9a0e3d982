"""Simulation of jobs with thousands of ranks in virtual time: workloads, event loop, network and plots."""
