"""What every command line may say besides its command: --home and --json. Imports nothing of weight."""

from dataclasses import dataclass

import typer


@dataclass
class Invocation:
    """The global options, wherever on the command line they stood. `home_flag` None: not given."""

    home_flag: str | None = None
    json: bool = False


def invocation(context: typer.Context) -> Invocation:
    """Return the global options of this command line."""
    found: Invocation = context.obj
    return found
