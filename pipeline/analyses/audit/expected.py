"""Which collectives a step should hold, row by row with the reason: pure, from how the model is laid out over
ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.text import counted


@dataclass(frozen=True)
class Layout:
    """How one model is spread over ranks. Sizes are ranks; `shared_apart`: the shared expert's sum is reduced
    by its own call."""

    tp: int = 1
    dp: int = 1
    ep: int = 1
    pp: int = 1
    sequence_parallel: bool = False
    shared_apart: bool = False
    draft_layers: int = 1

    @property
    def exchanges(self) -> bool:
        """Tokens are sent to the ranks of their experts and back: data-parallel attention with experts spread
        over all ranks."""
        return self.dp > 1 and self.ep > 1


@dataclass(frozen=True)
class Shape:
    """What one kind of step runs on one pipeline stage: its layers, which of them have experts, passes of a
    draft model.

    `is_draft`: it is such a pass and nothing else.
    """

    layers: int
    moe: frozenset[int]
    draft_passes: int = 0
    stage: int = 0
    is_draft: bool = False


@dataclass(frozen=True)
class Expected:
    """One row: `operation` in `part` of the step, in each of `layers` (None: once), from `low` to `high`
    calls (None: or more) a position."""

    part: str
    operation: str
    layers: tuple[int, ...] | None
    low: int
    high: int | None
    reason: str

    @property
    def positions(self) -> int:
        """How many positions of a step it covers."""
        return 1 if self.layers is None else len(self.layers)

    def text(self) -> str:
        """The calls in a step: 61, 0-1, 1+."""
        low = self.low * self.positions
        if self.high is None:
            return f"{low}+"
        return str(low) if self.high == self.low else f"{low}-{self.high * self.positions}"


def expected(layout: Layout, shape: Shape) -> list[Expected]:
    """The rows of one shape of step. A position without a row should hold no collective."""
    if shape.is_draft:
        return _drafts(layout, shape)
    every = tuple(range(shape.layers))
    moe = tuple(sorted(shape.moe))
    dense = tuple(layer for layer in every if layer not in shape.moe)
    rows = (
        _sequence_parallel(layout, shape, every, moe, dense)
        if layout.sequence_parallel
        else _tensor_parallel(layout, shape, every, moe, dense)
    )
    if layout.exchanges:
        rows.append(
            Expected(
                "moe",
                "dispatch",
                moe,
                1,
                1,
                "tokens go to the ranks of their experts (all-gather or all-to-all)",
            )
        )
        rows.append(
            Expected(
                "moe", "combine", moe, 1, 1, "and their results come back (reduce-scatter or all-to-all)"
            )
        )
    rows += _logits(layout, shape) + _drafts(layout, shape) + _pipeline(layout, shape)
    return [row for row in rows if row.positions and row.high != 0]


def _tensor_parallel(
    layout: Layout, shape: Shape, every: tuple[int, ...], moe: tuple[int, ...], dense: tuple[int, ...]
) -> list[Expected]:
    """One all-reduce after the embedding and two per layer; data-parallel attention (tp 1) reduces
    nothing."""
    if layout.tp == 1:
        return []
    rows = []
    if shape.stage == 0:
        rows.append(
            Expected(
                "before_layers",
                "all-reduce",
                None,
                1,
                1,
                "embedding: each rank holds a part of the vocabulary",
            )
        )
    rows.append(
        Expected(
            "after_attention",
            "all-reduce",
            every,
            1,
            1,
            "one per layer: attention's output projection is split",
        )
    )
    rows.append(
        Expected("after_mlp", "all-reduce", dense, 1, 1, "one per dense layer: its down projection is split")
    )
    if layout.exchanges:
        rows.append(
            Expected(
                "after_moe",
                "all-reduce",
                moe,
                0,
                1,
                "tensor parallelism with expert exchange: engines differ, at most one per layer",
            )
        )
    elif layout.shared_apart:
        rows.append(
            Expected(
                "after_moe",
                "all-reduce",
                moe,
                2,
                2,
                "two per MoE layer: the experts' sum, and that of the shared expert",
            )
        )
    else:
        how = (
            "experts are spread, and tokens are on every rank"
            if layout.ep > 1
            else "experts' down projections are split"
        )
        rows.append(Expected("after_moe", "all-reduce", moe, 1, 1, f"one per MoE layer: {how}"))
    return rows


def _sequence_parallel(
    layout: Layout, shape: Shape, every: tuple[int, ...], moe: tuple[int, ...], dense: tuple[int, ...]
) -> list[Expected]:
    """Every all-reduce split: reduce-scatter, the norm on a part of the tokens, all-gather."""
    if layout.tp == 1:
        return []
    split = "sequence parallel: reduce-scatter instead of all-reduce"
    gather = "sequence parallel: all-gather after the norm"
    rows = []
    if shape.stage == 0:
        rows.append(Expected("before_layers", "reduce-scatter", None, 1, 1, f"embedding; {split}"))
    rows.append(Expected("before_attention", "all-gather", every, 1, 1, gather))
    rows.append(Expected("after_attention", "reduce-scatter", every, 1, 1, split))
    rows.append(Expected("after_attention", "all-gather", dense if layout.exchanges else every, 1, 1, gather))
    rows.append(Expected("after_mlp", "reduce-scatter", dense, 1, 1, split))
    if not layout.exchanges:
        rows.append(Expected("after_moe", "reduce-scatter", moe, 1, 1, split))
    return rows


def _logits(layout: Layout, shape: Shape) -> list[Expected]:
    """On the last stage each rank holds logits of a part of the vocabulary; they are gathered, which is no
    all-reduce."""
    if layout.tp == 1 or shape.stage < layout.pp - 1:
        return []
    calls = 2 if layout.sequence_parallel else 1
    also = " and the last norm's tokens" if layout.sequence_parallel else ""
    return [
        Expected(
            "after_layers", "all-gather", None, calls, calls, f"logits{also} are gathered: no all-reduce"
        )
    ]


def _drafts(layout: Layout, shape: Shape) -> list[Expected]:
    """A draft pass is a small model of its own: embedding, two per layer, logits."""
    if layout.tp == 1 or not shape.draft_passes:
        return []
    calls = shape.draft_passes * (1 + 2 * layout.draft_layers)
    passes = counted(shape.draft_passes, "draft pass", "draft passes")
    text = f"{passes} of {counted(layout.draft_layers, 'layer')}"
    return [
        Expected("draft", "all-reduce", None, calls, calls, f"{text}: embedding and two per layer each"),
        Expected("draft", "all-gather", None, shape.draft_passes, shape.draft_passes, f"{text}: logits each"),
    ]


def _pipeline(layout: Layout, shape: Shape) -> list[Expected]:
    """Stages pass hidden states on; how many tensors that are is the engine's choice."""
    if layout.pp == 1:
        return []
    sides = (shape.stage > 0) + (shape.stage < layout.pp - 1)
    rows = [
        Expected(
            "any",
            "send/receive",
            None,
            sides,
            None,
            f"stage {shape.stage} of {layout.pp}: hidden states from and to its neighbors",
        )
    ]
    if shape.stage > 0 and layout.tp > 1:
        rows.append(
            Expected(
                "before_layers", "all-gather", None, 0, None, "tensors that arrive in parts may be gathered"
            )
        )
    return rows


def without_positions(rows: list[Expected]) -> list[Expected]:
    """The same rows for a step whose layers are not proven: one row for each kind of call, for the whole
    step."""
    merged: dict[str, Expected] = {}
    for row in rows:
        low, high = row.low * row.positions, None if row.high is None else row.high * row.positions
        part = "any" if row.operation == "send/receive" else "draft" if row.part == "draft" else "unknown"
        key = f"{part} {row.operation}"
        text = f"{row.text()} {_POSITIONS[row.part]}"
        if key in merged:
            before = merged[key]
            most = None if high is None or before.high is None else before.high + high
            merged[key] = replace(before, low=before.low + low, high=most, reason=f"{before.reason}, {text}")
        else:
            merged[key] = Expected(part, row.operation, None, low, high, text)
    return list(merged.values())


_POSITIONS = {
    "before_layers": "before the layers", "before_attention": "before attention",
    "after_attention": "after attention", "after_mlp": "after MLP", "after_moe": "after MoE",
    "moe": "around the experts", "after_layers": "after the layers", "draft": "in draft passes",
    "any": "between stages",
}  # fmt: skip


def position_text(part: str, layer: int | None) -> str:
    """A position in words."""
    if part == "before_layers":
        return "before the first layer"
    if part == "after_layers":
        return "after the last layer"
    if part == "draft":
        return "draft passes"
    if part in {"unknown", "any"}:
        return "whole step"
    return f"layer {layer} {_POSITIONS[part]}" if layer is not None else f"{_POSITIONS[part]}, by layer"
