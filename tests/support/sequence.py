"""Kernels by kind, in order: rows of int_activity and int_activity_step for tests of steps and
layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.tables import Row, Tables, run_model

RULE = {
    "embed": "embedding_lookup", "norm": "rms_norm", "gemm": "nvjet", "splitk": "split_k_reduce",
    "rope": "rope", "cache": "mla_cache",
    "attention": "fa2_forward", "mla": "fa3_mla", "combine": "fa3_combine", "indexer": "indexer_logits",
    "allreduce": "nccl_all_reduce",
    "activation": "act_and_mul", "topk": "grouped_topk", "align": "moe_align", "expert": "marlin_moe",
    "sum": "moe_sum",
    "sample": "argmax", "cast": "inductor_cast", "fill": "torch_fill", "backward": "fa_backward",
    "strange": "unclassified",
    "fused": "allreduce_residual_norm", "fused_a": "fused_a_gemm", "gather": "nccl_all_gather",
    "scatter": "nccl_reduce_scatter",
    "exchange": "nccl_sendrecv_all_to_all", "ep_dispatch": "ep_dispatch", "ep_combine": "ep_combine",
    "send": "nccl_sendrecv",
}  # fmt: skip
"""Short words for kinds of kernels, and a rule that files them."""

DENSE = "norm gemm rope cache attention gemm allreduce norm gemm activation gemm allreduce"
MOE = (
    "norm gemm cache attention combine gemm allreduce norm gemm topk align expert activation expert sum "
    "allreduce"
)
HEAD = "norm gemm sample"


@dataclass
class Sequence:
    """Kernels on one device, 10 ns each and 5 ns apart by default, in words of RULE
    (`word:name` gives a name)."""

    now_ns: int = 1_000
    trace_id: str = "t"
    device: int = 0
    kernels: list[dict[str, Any]] = field(default_factory=list)
    places: list[Row] = field(default_factory=list)
    launches: int = 0

    def run(
        self, words: str, step: int | None = 0, *, gap_ns: int = 5, graph: bool = False, **fields: Any
    ) -> Sequence:
        """Add kernels of a step, each by a call of its own or all by one graph replay; `fields` go into their
        rows."""
        for number, word in enumerate(words.split()):
            kind, _, name = word.partition(":")
            if number == 0 or not graph:
                self.launches += 1
            row = {
                "trace_id": self.trace_id, "device": self.device, "activity_id": len(self.kernels),
                "rule_id": RULE[kind], "name": name or kind,
                "start_ns": self.now_ns, "end_ns": self.now_ns + 10, "dur_ns": 10,
                "correlation": self.launches, "launch_ns": self.launches,
                "is_graph": graph,
            }  # fmt: skip
            self.kernels.append(row | fields)
            self.places.append({"trace_id": self.trace_id, "activity_id": row["activity_id"], "step": step})
            self.now_ns += 10 + gap_ns
        return self

    def tables(self) -> dict[str, list[Row]]:
        """What models of steps and layers read."""
        return {"int_activity": [*self.kernels], "int_activity_step": self.places}

    def layer_rows(self) -> list[Row]:
        """The rows that int_layer makes of them."""
        columns = ("trace_id", "device", "step", "activity_id", "layers", "layer", "is_after_layers")
        return [
            dict(zip(columns, row, strict=True))
            for row in run_model("int_layer", self.tables(), ", ".join(columns))
        ]


def joined(*sequences: Sequence) -> dict[str, list[Row]]:
    """The tables of several traces or devices in one."""
    made = [sequence.tables() for sequence in sequences]
    return {table: [row for one in made for row in one[table]] for table in made[0]}


__all__ = ["DENSE", "HEAD", "MOE", "RULE", "Row", "Sequence", "Tables", "joined", "run_model"]
