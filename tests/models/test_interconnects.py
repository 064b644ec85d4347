"""What links and memories can carry: every figure has a source, and names of GPUs find theirs."""

from __future__ import annotations

from pipeline.models.interconnects import interconnects, memory_of
from tests.support.tables import evaluate


def test_every_link_has_a_source_and_generations_double() -> None:
    """PCIe x16 doubles with each generation of one encoding; NVLink's figures are a GPU's in one
    direction."""
    known = interconnects()
    assert all(link.source and link.gbps > 0 for link in known.values())
    assert known["pcie5_x16"].gbps == 2 * known["pcie4_x16"].gbps - 0.001
    assert (known["nvlink3"].gbps, known["nvlink4"].gbps, known["nvlink5"].gbps) == (300, 450, 900)


def test_memory_is_found_by_a_part_of_the_name() -> None:
    """As the driver writes it; a GPU that is not listed has none."""
    found = memory_of("NVIDIA H200")
    assert found is not None
    assert (found.gbps, found.source) == (4800, "NVIDIA H200 data sheet")
    assert memory_of("NVIDIA Strange GPU") is None
    assert memory_of(None) is None


def test_models_see_the_links() -> None:
    """Each link is a row of link_info, with the latency of NCCL's model where it has one."""
    assert evaluate("(SELECT count(*) FROM link_info)") == len(interconnects())
    assert evaluate("(SELECT gbps FROM link_info WHERE link = 'nvlink4')") == 450
    assert evaluate("(SELECT hop_us FROM link_info WHERE link = 'xgmi_mi300x')") is None
