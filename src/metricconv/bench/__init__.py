"""Benchmarks: correctness first, then one long CSV with the hardware named, and a table and a plot made from it."""
