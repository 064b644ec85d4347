"""Reader of Nsight Systems exports: .sqlite of every schema since 2021, parquetdir and arrowdir folders."""

from pipeline.sources.job import ReadJob

__all__ = ["read_nsys"]


def read_nsys(job: ReadJob) -> None:
    """Read one report (see reader.read_nsys). Its libraries are loaded here: few commands need them."""
    from pipeline.sources.nsys.reader import read_nsys as read

    read(job)
