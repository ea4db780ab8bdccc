"""Benchmarks: one file for each question. `python -m benchmarks --help` in the root of the checkout."""
