"""The command `hubctl`: a table of commands that are loaded when they are called, and the edge where errors end.

Invariant: `--help` imports typer and nothing else of weight; each command's module is imported when that command is
named. The global options --home and --json are accepted before the command's name and after it.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from cli.errors import EXPECTED
from cli.invocation import Invocation, invocation


def _needs_coercion(param: Any, value: Any) -> bool:
    """Return whether typer must look at a value. Its coercion loads pydantic, a quarter of all the time."""
    if value is None:
        return bool(param.required or param.multiple or param.nargs != 1)
    return not (isinstance(value, str) and param.type_descriptor.annotation is str)


class PlainOption(TyperOption):
    """An option that takes what needs no coercion as it is."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        if _needs_coercion(self, value):
            return super().process_value(ctx, value)
        return self.callback(ctx, self, value) if self.callback else value


class PlainArgument(TyperArgument):
    """An argument that takes what needs no coercion as it is."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        return super().process_value(ctx, value) if _needs_coercion(self, value) else value


PLAIN: dict[type, type] = {TyperOption: PlainOption, TyperArgument: PlainArgument}


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        param.__class__ = PLAIN.get(type(param), type(param))
    return params


class PlainCommand(TyperCommand):
    """A command whose parameters are plain where they can be."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


@dataclass(frozen=True)
class Row:
    """One command: the module that holds it, the name of its function or Typer app there, and its line of help."""

    module: str
    attribute: str
    help: str


TABLE: dict[str, Row] = {
    "run": Row("cli.run", "run", "Give the agent a prompt and follow its run to the end."),
    "attach": Row("cli.attach", "attach", "Show a session's transcript so far, then follow it live."),
    "send": Row("cli.sessions", "send", "Send a session a prompt or a steer, without waiting."),
    "cancel": Row("cli.sessions", "cancel", "Stop a session's run."),
    "sessions": Row("cli.sessions", "sessions", "List sessions, newest first."),
    "show": Row("cli.sessions", "show", "Show a session: its messages and its runs."),
    "session": Row("cli.session_group", "app", "Fork, rename or archive a session."),
    "queue": Row("cli.sessions", "queue", "List the prompts that wait in a session, next first."),
    "approvals": Row("cli.approvals", "approvals", "List the tool calls and questions that wait for an answer."),
    "approve": Row("cli.approvals", "approve", "Allow a tool call that waits."),
    "reject": Row("cli.approvals", "reject", "Refuse a tool call that waits."),
    "answer": Row("cli.approvals", "answer", "Answer a question of an agent."),
    "checkpoint": Row("cli.checkpoints", "app", "Save a workspace, compare, and turn it back."),
    "workspace": Row("cli.workspaces", "app", "Register directories by name."),
    "inbox": Row("cli.inbox", "inbox", "Show the results that nobody has seen yet."),
    "start": Row("cli.hub_commands", "start", "Start the hub."),
    "stop": Row("cli.stopping", "stop", "Stop the hub; runs that are not done go on after the next start."),
    "restart": Row("cli.stopping", "restart", "Stop the hub and start it again."),
    "status": Row("cli.hub_commands", "status", "Tell how the hub is."),
    "logs": Row("cli.logs", "logs", "Show the hub's log."),
    "doctor": Row("cli.doctor", "doctor", "Check this installation; changes nothing."),
    "demo": Row("cli.demo", "demo", "Show on a repository of its own that a run can be turned back."),
}


def load(row: Row) -> Any:
    """Return the command of a row, with the global options added. Imports its module."""
    found = getattr(importlib.import_module(row.module), row.attribute)
    if isinstance(found, typer.Typer):
        return _with_globals(get_command(found))
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(cls=PlainCommand)(found)
    return _with_globals(get_command(single))


def _with_globals(command: Any) -> Any:
    command.params.extend(_global_options())
    for inner in getattr(command, "commands", {}).values():
        _with_globals(inner)
    return command


def _set_home(context: typer.Context, value: str | None) -> None:
    if value is not None:
        invocation(context).home_flag = value


def _set_json(context: typer.Context, value: bool) -> None:
    if value:
        invocation(context).json = True


def _options(
    home: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            callback=_set_home,
            expose_value=False,
            help="Home of the hub [default: TURNBACK_HOME, else the user data folder].",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", callback=_set_json, expose_value=False, help="Print JSON and nothing else to stdout."),
    ] = False,
) -> None:
    """Carry the declarations of the global options."""


@lru_cache
def _global_options() -> tuple[Any, ...]:
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    holder.command()(_options)
    return tuple(get_command(holder).params)


class LazyGroup(TyperGroup):
    """A group that knows its commands by the table, and loads the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, row in TABLE.items():
            self.add_command(TyperCommand(name, short_help=row.help, callback=None))

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        row = TABLE.get(args[0])
        if row is not None:
            self.add_command(load(row), args[0])
        return super().resolve_command(ctx, args)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(importlib.import_module("hub").__version__)
        raise typer.Exit


app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def hubctl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Turnback: a local hub for coding agents. Every run asks before it acts, and can be turned back."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given or ["--help"]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code; errors that are expected are told on stderr."""
    command = get_command(app)
    command.params.extend(_global_options())
    options = Invocation()
    try:
        result = command.main(arguments, prog_name="hubctl", standalone_mode=False, obj=options)
        return result if isinstance(result, int) else 0
    except EXPECTED as error:
        as_json = options.json or "--json" in arguments
        exit_code: int = importlib.import_module("cli.output").failed(error, as_json=as_json)
        return exit_code


if __name__ == "__main__":
    main()
