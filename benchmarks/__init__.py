"""Benchmarks: how fast and how small the hub is, beside yardsticks that are measured in the same run."""
