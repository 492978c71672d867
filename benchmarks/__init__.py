"""Benchmarks of the backends, run from a checkout: ``python -m benchmarks`` checks results, then measures times."""
