"""Reader of Kineto chrome traces (torch.profiler), NVIDIA and AMD, of every torch since 1.8."""

from pipeline.sources.kineto.reader import read_kineto

__all__ = ["read_kineto"]
