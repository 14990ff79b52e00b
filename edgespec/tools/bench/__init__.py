"""Benchmarks a user can run: what the kernels reach on this machine, beside what others reach."""
