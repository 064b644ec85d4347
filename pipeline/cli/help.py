"""How commands present themselves: flags without a type, an example below each, and arguments escaped in
errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from pipeline.text import printable_lines


def _without_flag_types(params: list[Any]) -> list[Any]:
    """A flag takes no value, so its help shows no type."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_bool_flag:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, for parsing and for the help."""
        return _without_flag_types(super().get_params(ctx))


class Commands(TyperGroup):
    """A group of commands. What typer prints of a wrong argument is escaped: it may be a file's name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command."""
        return _without_flag_types(super().get_params(ctx))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments before the command."""
        with _escaped():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read those of the command, and carry it out."""
        with _escaped():
            return super().invoke(ctx)


@contextmanager
def _escaped() -> Iterator[None]:
    try:
        yield
    except TyperException as error:
        error.message = printable_lines(error.message)
        raise


def register(
    app: typer.Typer, command: Callable[..., None], example: str, panel: str | None = None, **extra: Any
) -> None:
    """Add a command to the app, with an example below its help."""
    app.command(cls=Command, epilog=f"Example: {example}", rich_help_panel=panel, **extra)(command)
