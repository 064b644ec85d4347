"""The commands: arguments to one call to one print. stdout is data; progress and messages go to stderr."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline import __version__, cli_questions
from pipeline.errors import ExitCode, StepledgerError, UsageError, exit_code_for
from pipeline.home import Home
from pipeline.sources.job import MAX_BYTES

if TYPE_CHECKING:
    from pipeline.ingest import Means

app = typer.Typer(
    name="stepledger",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Books every nanosecond of GPU work in an LLM-inference trace to a rank, a step and a category.",
)


cli_questions.add_to(app)

RunOption = Annotated[str | None, typer.Option("--run", help="The run: its name or id.")]
MaxBytesOption = Annotated[int, typer.Option("--max-bytes", min=1, help="Refuse a trace with more bytes of text after decompression.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that work at once (default: the cores).")]
MemoryOption = Annotated[str | None, typer.Option("--memory-limit", help="DuckDB's memory in each of them, e.g. 2GB (default 1GB).")]
SchedulerOption = Annotated[str | None, typer.Option("--scheduler", help="A Dask cluster to work on, e.g. tcp://host:8786.")]
FormatOption = Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="How to print.")]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"stepledger {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    home: Annotated[Path, typer.Option("--home", envvar="STEPLEDGER_HOME", help="Where inbox, lake and exports are.")] = Path("warehouse"),
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    context.obj = Home(home)


@app.command()
def run(
    context: typer.Context,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Drain the inbox: ingest, build, check, export; print the tables."""
    from pipeline.ingest import drain
    from pipeline.progress import Progress

    with _means(context.obj, workers, memory_limit, scheduler, max_bytes) as means:
        outcome = drain(context.obj, Progress(), means)
    if not outcome.built and not outcome.codes:
        typer.echo(f"nothing new: no finished trace in {context.obj.inbox}", err=True)
    _export_and_show(context.obj, outcome.built)
    _leave([*outcome.codes, *(ExitCode.QUALITY for v in outcome.verdicts.values() if v == "fail")])


@app.command()
def ingest(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Trace files, or folders (a folder is a run).")],
    run: RunOption = None,
    no_build: Annotated[bool, typer.Option("--no-build", help="Leave the marts for a later `build`.")] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Ingest files or folders outside the inbox; they are left where they are."""
    from pipeline.inbox import named
    from pipeline.ingest import ingest as ingest_items
    from pipeline.progress import Progress

    missing = [str(p) for p in paths if not p.exists()]
    if missing:
        raise UsageError(f"no such file or folder: {', '.join(missing)}")
    items = named(paths, run)
    if not items:
        raise UsageError(f"no file in {', '.join(map(str, paths))}")
    with _means(context.obj, workers, memory_limit, scheduler, max_bytes) as means:
        outcome = ingest_items(context.obj, items, Progress(), means, is_built=not no_build)
    for run_id in outcome.runs:
        typer.echo(run_id)
    _leave(outcome.codes)


@app.command()
def watch(
    context: typer.Context,
    json_log: Annotated[bool, typer.Option("--json-log", help="Say what happens as lines of JSON on stderr.")] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Do what `run` does whenever files arrive in the inbox, until stopped."""
    from pipeline.export import export_built
    from pipeline.progress import Progress
    from pipeline.watch import Stop, Watcher

    home: Home = context.obj
    progress = Progress(json_log=json_log)
    with _means(home, workers, memory_limit, scheduler, max_bytes) as means, Stop().listening(progress.say) as stop:
        code = Watcher(home, means, progress, lambda outcome: export_built(home, outcome.verdicts, progress.say)).run(stop)
    raise typer.Exit(int(code))


@app.command()
def build(
    context: typer.Context,
    run: RunOption = None,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Build the marts of runs whose files, rules or models changed (with --run: that run in any case)."""
    from pipeline.ingest import stale

    home: Home = context.obj
    _build(home, stale(home) if run is None else _known(home, run), workers, memory_limit, scheduler)


@app.command()
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


def _build(home: Home, runs: list[str], workers: int | None, memory_limit: str | None, scheduler: str | None) -> None:
    from pipeline.ingest import build as build_runs
    from pipeline.progress import Progress

    with _means(home, workers, memory_limit, scheduler) as means:
        outcome = build_runs(home, runs, Progress(), means)
    for run_id in outcome.built:
        typer.echo(run_id)
    _leave(outcome.codes)


@app.command()
def retry(context: typer.Context, files: Annotated[list[str] | None, typer.Argument(help="Files as `status` names them; none: all.")] = None) -> None:
    """Put quarantined files back into the inbox, for the next `run` or a running `watch`."""
    from pipeline.inbox import retry as retry_files
    from pipeline.progress import Progress

    home: Home = context.obj
    with home.writing(Progress().say):
        for place in retry_files(home, files):
            typer.echo(str(place))


@app.command()
def forget(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The run: its name or id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take a run out of the lake; its originals stay in the archive."""
    from pipeline.progress import Progress
    from pipeline.warehouse import forget as forget_run
    from pipeline.warehouse import write_database

    home: Home = context.obj
    (run_id,) = _known(home, run)
    if not yes and not typer.confirm(f"Remove run {run_id} from the lake ({home.raw_run(run_id)})?", err=True):
        raise UsageError("nothing was removed")
    with home.writing(Progress().say):
        forget_run(home, run_id)
        write_database(home)
    typer.echo(run_id)


@app.command()
def compact(
    context: typer.Context,
    older_than_days: Annotated[float, typer.Option("--older-than-days", min=0, help="Runs not built for so long.")] = 7,
) -> None:
    """Put the marts of old runs into few files, so that questions over thousands of runs stay fast."""
    from pipeline.compact import compact_runs, compactable
    from pipeline.progress import Progress
    from pipeline.warehouse import tidy, write_database

    home: Home = context.obj
    progress = Progress()
    with home.writing(progress.say):
        tidy(home)
        runs = compactable(home, older_than_days * 86_400)
        if runs:
            with progress.task(f"compacting {len(runs)} runs"):
                compact_runs(home, runs)
        write_database(home)
    typer.echo(f"{len(runs)} runs compacted")


@app.command()
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
    groups: Annotated[str | None, typer.Option(help="Which ranks reduce together, e.g. 'tp:0,1;tp:2,3;ep:0,1,2,3'.")] = None,
    sequence_parallel: Annotated[bool | None, typer.Option(help="Do tensor-parallel ranks hold parts of the sequence between blocks?")] = None,
    moe_intermediate: Annotated[int | None, typer.Option(help="Width of a routed expert.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width of a dense MLP.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    kv_lora_rank: Annotated[int | None, typer.Option(help="Width of MLA's latent.")] = None,
    q_lora_rank: Annotated[int | None, typer.Option(help="Width of MLA's low-rank query.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens of the vocabulary.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Tokens of context of a request.")] = None,
    hbm_gbps: Annotated[int | None, typer.Option(help="Memory bandwidth of a GPU, GB/s, as measured.")] = None,
    draft_layers: Annotated[int | None, typer.Option(help="Layers of the draft model.")] = None,
    ranks: Annotated[str | None, typer.Option(help="all: every rank of the job must be present.")] = None,
    link: Annotated[str | None, typer.Option(help="What joins the GPUs, e.g. pcie4_x16.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Time per output token measured without a profiler, ms.")] = None,
    notes: Annotated[str | None, typer.Option(help="Anything else.")] = None,
) -> None:
    """Say what a trace cannot tell of a run (or put a run.toml beside its traces), and rebuild it."""
    from pipeline.ingest import say_of_run
    from pipeline.progress import Progress
    from pipeline.warehouse import find_run, reading

    said = {
        "model": model, "layers": layers, "hidden_size": hidden, "experts": experts, "experts_per_token": top_k,
        "shared_experts": shared_experts, "dense_layers": dense_layers, "dtype": dtype, "weight_dtype": weight_dtype,
        "groups": groups, "sequence_parallel": sequence_parallel, "moe_intermediate_size": moe_intermediate,
        "intermediate_size": intermediate, "heads": heads, "kv_lora_rank": kv_lora_rank, "q_lora_rank": q_lora_rank,
        "vocab_size": vocab, "context_tokens": context_tokens, "hbm_gbps": hbm_gbps, "draft_layers": draft_layers,
        "tp": tp, "dp": dp, "ep": ep, "pp": pp, "ranks": ranks, "link": link, "measured_tpot_ms": tpot_ms, "notes": notes,
    }  # fmt: skip
    given = {key: value for key, value in said.items() if value is not None}
    if not given:
        raise UsageError("nothing said; see `stepledger describe --help`")
    with reading(context.obj) as con:
        run_id = find_run(con, run)
    outcome = say_of_run(context.obj, run_id, given, Progress())
    typer.echo(run_id)
    _leave(outcome.codes)


@app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The run: its name or id.")],
    phase: Annotated[str | None, typer.Option(help="prefill, decode, mixed, verify or unknown.")] = None,
    form: FormatOption = "table",
) -> None:
    """Print the breakdown table of a run."""
    from pipeline.output import write_rows
    from pipeline.show import Screen, print_screen, screens
    from pipeline.warehouse import find_run, reading, stable

    def read() -> list[Screen]:
        with reading(context.obj) as con:
            return screens(con, find_run(con, run), phase)

    found = stable(context.obj, read)
    if form == "table":
        for screen in found:
            print_screen(screen)
        return
    rows = [row for screen in found for row in screen.rollups]
    columns = list(rows[0]) if rows else []
    write_rows(columns, [list(row.values()) for row in rows], form)


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(help="One SELECT (or DESCRIBE, SHOW, SUMMARIZE, FROM, VALUES); - reads it from stdin.")],
    form: FormatOption = "table",
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds until the query is stopped; 0: no limit.")] = 600,
) -> None:
    """Ask the warehouse in SQL; reading only."""
    from pipeline.output import write_rows
    from pipeline.query import asked

    with asked(context.obj, sys.stdin.read() if sql == "-" else sql, timeout) as answer:
        write_rows(answer.columns, answer.rows, form)


@app.command()
def export(
    context: typer.Context,
    mart: Annotated[str, typer.Argument(help="Which mart.")] = "step_breakdown",
    run: RunOption = None,
    form: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="How to write it.")] = "csv",
    output: Annotated[str | None, typer.Option("--output", help="A file, or - for stdout.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="One row a step, one column a rollup.")] = False,
    allow_failed: Annotated[bool, typer.Option("--allow-failed", help="Export a run that failed its checks too.")] = False,
) -> None:
    """Write a mart as CSV or Parquet, with a manifest of what it was made from."""
    from pipeline.export import export_run, export_to_stdout, refuse_failed

    home: Home = context.obj
    runs = [run] if run is not None else home.run_ids()
    if not runs:
        raise UsageError("no runs yet: drop traces into the inbox and say `stepledger run`")
    if output is not None and len(runs) > 1:
        raise UsageError(f"--output takes one run; name it with --run: {', '.join(runs)}")
    if not allow_failed:
        for one in runs:
            refuse_failed(home, one)
    for one in runs:
        if output == "-":
            export_to_stdout(home, one, mart, form, wide=wide)
        else:
            done = export_run(home, one, mart, form, Path(output) if output else None, wide=wide)
            typer.echo(str(done.path))


@app.command()
def check(context: typer.Context, run: RunOption = None, form: FormatOption = "table") -> None:
    """Check the derived tables, with pages of the results; exit 5 when a run fails."""
    from pipeline.output import write_rows
    from pipeline.progress import Progress
    from pipeline.quality import check_runs, docs_page
    from pipeline.warehouse import find_run, opened

    home: Home = context.obj
    runs = home.run_ids()
    if run is not None:
        with opened(home) as con:
            runs = [find_run(con, run)]
    if not runs:
        raise UsageError("no runs yet: drop traces into the inbox and say `stepledger run`")
    progress = Progress()
    found, codes = check_runs(home, runs, progress.say)
    columns = ["run_id", "severity", "check", "failing_rows", "means", "todo"]
    wrong = [[r, x.severity, x.check, x.failing_rows, x.means, x.todo] for r, results in found.items() for x in results if not x.is_passed]
    if form == "table":
        from pipeline.quality import verdict

        for run_id, results in found.items():
            typer.echo(
                f"{run_id}: {verdict(results)}, {sum(x.is_passed for x in results)} of {len(results)} checks passed; pages: {docs_page(home, run_id)}"
            )
        wrong = [row[:5] for row in wrong]
        columns = columns[:5]
    if wrong or form != "table":
        write_rows(columns, wrong, form)
    _leave([*codes, *(ExitCode.QUALITY for results in found.values() if any(not x.is_passed and x.severity == "fail" for x in results))])


@app.command()
def status(
    context: typer.Context,
    issues: Annotated[bool, typer.Option("--issues", help="Trouble that readers counted, by run and code.")] = False,
    form: FormatOption = "table",
) -> None:
    """What waits in the inbox, what is quarantined and why, and the runs; or the issues of all files."""
    from pipeline.output import write_rows
    from pipeline.status import issue_rows, status_rows

    columns, rows = issue_rows(context.obj) if issues else status_rows(context.obj)
    write_rows(columns, rows, form)


@app.command()
def runs(context: typer.Context, form: FormatOption = "table") -> None:
    """List the runs."""
    from pipeline.output import write_rows
    from pipeline.query import run_query

    columns, rows = run_query(
        context.obj,
        "SELECT run_id, source, verdict, traces, ranks, ranks_expected, decode_steps, prefill_steps, gpu_name, engine "
        "FROM runs ORDER BY run_id, source",
    )
    write_rows(columns, rows, form)


@app.command()
def rules(
    context: typer.Context,
    explain: Annotated[str | None, typer.Option("--explain", help="A kernel name: which rule claims it, and why.")] = None,
    op: Annotated[str | None, typer.Option("--op", help="With --explain: the launching operator.")] = None,
    form: FormatOption = "table",
) -> None:
    """Show the kernel rules in force, the user's own first."""
    from pipeline.explain import explain_name, rule_rows
    from pipeline.output import write_rows

    columns, rows = rule_rows(context.obj) if explain is None else explain_name(context.obj, explain, op)
    write_rows(columns, rows, form)


@app.command()
def demo(context: typer.Context) -> None:
    """Run everything on the traces that ship with stepledger."""
    from pipeline.demo import DEMO_RUN, demo_items
    from pipeline.ingest import ingest as ingest_items
    from pipeline.progress import Progress

    home: Home = context.obj
    outcome = ingest_items(home, demo_items(), Progress())
    _export_and_show(home, outcome.runs)
    command = "stepledger" if shutil.which("stepledger") else os.path.relpath(sys.argv[0])  # make demo runs it from .venv/bin
    typer.echo(
        f"\ndatabase: {home.database}\n"
        "next:\n"
        f'  {command} --home {home.root} query "SELECT step, category, calls, busy_ns FROM step_breakdown WHERE rank = 0 AND step = 0"\n'
        f"  {command} --home {home.root} show {DEMO_RUN}\n"
        f"  cp your-traces/*.json.gz {home.inbox}/ && {command} --home {home.root} run"
    )
    _leave(outcome.codes)


def _export_and_show(home: Home, built: list[str]) -> None:
    from pipeline.export import DEFAULT_MART, export_run, run_verdict
    from pipeline.show import Screen, print_screen, screens
    from pipeline.warehouse import reading, stable

    for run_id in built:

        def read(run_id: str = run_id) -> list[Screen]:
            with reading(home) as con:
                return screens(con, run_id, None)

        for screen in stable(home, read):
            print_screen(screen)
        if run_verdict(home, run_id) == "fail":
            typer.echo(f"\n{run_id} failed its checks and is not exported (stepledger export --run {run_id} --allow-failed)", err=True)
            continue
        done = export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)
        typer.echo(f"\nper step, rank and category: {done.path}")


@contextmanager
def _means(home: Home, workers: int | None, memory_limit: str | None, scheduler: str | None, max_bytes: int = MAX_BYTES) -> Iterator[Means]:
    from pipeline.ingest import Means
    from pipeline.schedule import executor
    from pipeline.settings import load_settings

    settings = load_settings(home, workers=workers, memory_limit=memory_limit)
    with executor(settings.workers, scheduler) as made:
        means = Means(made, replace(settings, workers=made.workers), max_bytes)
        yield means if workers is None else replace(means, worth_bytes=0)


def _leave(codes: list[ExitCode]) -> None:
    code = exit_code_for(codes)
    if code is not ExitCode.OK:
        raise typer.Exit(int(code))


def main() -> None:
    """Entry point: every failure that has a name becomes one line and its exit code."""
    try:
        try:
            app(standalone_mode=True)
        finally:
            sys.stdout.flush()
    except StepledgerError as error:
        typer.echo(f"stepledger: error: {error}", err=True)
        sys.exit(int(error.exit_code))
    except (BrokenPipeError, SystemExit) as leaving:
        # `stepledger query ... | head`: the reader has what it wants. Typer turns a broken pipe into exit 1, a bug here.
        if not isinstance(leaving, BrokenPipeError) and not isinstance(leaving.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(ExitCode.OK))
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
