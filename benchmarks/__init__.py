"""Benchmarks: `python -m benchmarks.NAME [--quick] [--json FILE]`. Each ends with a table; ratios matter."""
