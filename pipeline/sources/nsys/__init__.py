"""Reader of Nsight Systems exports: .sqlite of every schema since 2021, parquetdir and arrowdir folders."""

from pipeline.sources.nsys.reader import read_nsys

__all__ = ["read_nsys"]
