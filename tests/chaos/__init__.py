"""Tests that kill real jobs, cut their power or break their disks, resume them, and compare the result with oracles."""
