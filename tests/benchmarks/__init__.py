"""Ratios against other readers, at two file sizes: `python -m tests.benchmarks.ingest`. Not collected by
pytest."""
