"""The commands that tend a home: watch, build, rebuild, describe, retry, forget, compact, status."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import (
    FormatOption,
    MaxBytesOption,
    MemoryOption,
    RawOption,
    RunOption,
    SchedulerOption,
    WorkersOption,
    execution_config,
    leave,
    say,
)
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.sources.job import MAX_BYTES
from pipeline.sources.names import as_text
from pipeline.text import printable


def add_to(app: typer.Typer) -> None:
    """Put the commands into the app."""
    for command in (watch, build, rebuild, describe, retry, forget, compact, status):
        app.command(rich_help_panel="Tend a home")(command)


def watch(
    context: typer.Context,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Say what happens as lines of JSON on stderr.")
    ] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Do what `run` does whenever files arrive in the inbox, until stopped."""
    from pipeline.ingest.watch import Stop, Watcher
    from pipeline.lake.versions import refuse_newer
    from pipeline.present.export import export_built
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_newer(home)
    progress = Progress(json_log=json_log)
    with (
        execution_config(home, workers, memory_limit, scheduler, max_bytes) as execution,
        Stop().listening(progress.say) as stop,
    ):
        code = Watcher(
            home, execution, progress, lambda outcome: export_built(home, outcome.verdicts, progress.say)
        ).run(stop)
    raise typer.Exit(int(code))


def build(
    context: typer.Context,
    run: RunOption = None,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Build the marts of runs whose files, rules or models changed (with --run: that run in any case)."""
    from pipeline.ingest.ingest import stale

    home: Home = context.obj
    _build(home, stale(home) if run is None else _known(home, run), workers, memory_limit, scheduler)


def rebuild(
    context: typer.Context,
    run: RunOption = None,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Build the marts of all runs (or of one) from the raw tables, whether they need it or not."""
    home: Home = context.obj
    _build(home, home.run_ids() if run is None else _known(home, run), workers, memory_limit, scheduler)


def _known(home: Home, run: str) -> list[str]:
    found = [r for r in home.run_ids() if r in {run, home.run_id_for(run)}]
    if not found:
        raise UsageError(f"no run {run!r}; known runs: {', '.join(home.run_ids()) or 'none yet'}")
    return found


def _build(
    home: Home, runs: list[str], workers: int | None, memory_limit: str | None, scheduler: str | None
) -> None:
    from pipeline.ingest.ingest import build as build_runs
    from pipeline.progress import Progress

    with execution_config(home, workers, memory_limit, scheduler) as execution:
        outcome = build_runs(home, runs, Progress(), execution)
    for run_id in outcome.built:
        say(run_id)
    leave(outcome.codes)


def retry(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files as `status` names them; none: all.")
    ] = None,
) -> None:
    """Put quarantined files back into the inbox, for the next `run` or a running `watch`."""
    from pipeline.ingest.quarantine import retry as retry_files
    from pipeline.lake.versions import refuse_newer
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_newer(home)
    with home.writing(Progress().say):
        for place in retry_files(home, files):
            say(str(place))


def forget(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The run: its name or id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take a run out of the lake; its originals stay in the archive."""
    from pipeline.lake.database import write_database
    from pipeline.lake.tidy import forget as forget_run
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_unreadable(home)
    (run_id,) = _known(home, run)
    question = f"Remove run {run_id} from the lake ({home.raw_run(run_id)})?"
    if not yes and not typer.confirm(printable(question), err=True):
        raise UsageError("nothing was removed")
    with home.writing(Progress().say):
        forget_run(home, run_id)
        write_database(home)
    say(run_id)


def compact(
    context: typer.Context,
    older_than_days: Annotated[
        float, typer.Option("--older-than-days", min=0, help="Runs not built for so long.")
    ] = 7,
) -> None:
    """Put the marts of old runs into few files, so that questions over thousands of runs stay fast."""
    from pipeline.lake.compact import compact_runs, compactable
    from pipeline.lake.database import write_database
    from pipeline.lake.tidy import tidy
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_unreadable(home)
    progress = Progress()
    with home.writing(progress.say):
        tidy(home)
        runs = compactable(home, older_than_days * 86_400)
        if runs:
            with progress.task(f"compacting {len(runs)} runs"):
                compact_runs(home, runs)
        write_database(home)
    say(f"{len(runs)} runs compacted")


def describe(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The run: its name or id.")],
    model: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    layers: Annotated[int | None, typer.Option(help="Transformer layers.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of the residual stream.")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Routed experts per token.")] = None,
    shared_experts: Annotated[int | None, typer.Option(help="Shared experts.")] = None,
    dense_layers: Annotated[int | None, typer.Option(help="Layers without experts.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of activations, e.g. bfloat16.")] = None,
    weight_dtype: Annotated[str | None, typer.Option(help="Type of expert weights, e.g. int4.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel size.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert-parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size.")] = None,
    groups: Annotated[
        str | None, typer.Option(help="Which ranks reduce together, e.g. 'tp:0,1;tp:2,3;ep:0,1,2,3'.")
    ] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option(help="Do tensor-parallel ranks hold parts of the sequence between blocks?")
    ] = None,
    moe_intermediate: Annotated[int | None, typer.Option(help="Width of a routed expert.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width of a dense MLP.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    kv_lora_rank: Annotated[int | None, typer.Option(help="Width of MLA's latent.")] = None,
    q_lora_rank: Annotated[int | None, typer.Option(help="Width of MLA's low-rank query.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens of the vocabulary.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Tokens of context of a request.")] = None,
    hbm_gbps: Annotated[
        int | None, typer.Option(help="Memory bandwidth of a GPU, GB/s, as measured.")
    ] = None,
    draft_layers: Annotated[int | None, typer.Option(help="Layers of the draft model.")] = None,
    ranks: Annotated[str | None, typer.Option(help="all: every rank of the job must be present.")] = None,
    link: Annotated[str | None, typer.Option(help="What joins the GPUs, e.g. pcie4_x16.")] = None,
    tpot_ms: Annotated[
        float | None, typer.Option(help="Time per output token measured without a profiler, ms.")
    ] = None,
    notes: Annotated[str | None, typer.Option(help="Anything else.")] = None,
) -> None:
    """Say what a trace cannot tell of a run (or put a run.toml beside its traces), and rebuild it."""
    from pipeline.ingest.ingest import say_of_run
    from pipeline.lake.reading import known_run, run_id_of
    from pipeline.progress import Progress

    said = {
        "model": model, "layers": layers, "hidden_size": hidden, "experts": experts, "experts_per_token": top_k,
        "shared_experts": shared_experts, "dense_layers": dense_layers, "dtype": dtype, "weight_dtype": weight_dtype,
        "groups": groups, "sequence_parallel": sequence_parallel, "moe_intermediate_size": moe_intermediate,
        "intermediate_size": intermediate, "heads": heads, "kv_lora_rank": kv_lora_rank, "q_lora_rank": q_lora_rank,
        "vocab_size": vocab, "context_tokens": context_tokens, "hbm_gbps": hbm_gbps, "draft_layers": draft_layers,
        "tp": tp, "dp": dp, "ep": ep, "pp": pp, "ranks": ranks, "link": link, "measured_tpot_ms": tpot_ms, "notes": notes,
    }  # fmt: skip
    given = {k: as_text(v) if isinstance(v, str) else v for k, v in said.items() if v is not None}
    if not given:
        raise UsageError("nothing said; see `stepledger describe --help`")
    run_id = run_id_of(context.obj, run, known_run)
    outcome = say_of_run(context.obj, run_id, given, Progress())
    say(run_id)
    leave(outcome.codes)


def status(
    context: typer.Context,
    issues: Annotated[
        bool, typer.Option("--issues", help="Trouble that readers counted, by run and code.")
    ] = False,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """What waits in the inbox, what is quarantined and why, and the runs; or the issues of all files."""
    from pipeline.ingest.status import issue_rows, status_rows
    from pipeline.present.output import write_rows

    columns, rows = issue_rows(context.obj) if issues else status_rows(context.obj)
    write_rows(columns, rows, form, raw=raw)
