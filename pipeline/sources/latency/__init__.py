"""Latency tables of collectives: nccl-tests, CSV."""
