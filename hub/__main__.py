"""Run the hub in the foreground: `python -m hub [--home DIR] [--port N]`.

The first SIGTERM or SIGINT drains and stops; the second stops at once. Exit codes are those of hub.errors.ExitCode.
"""

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

from hub import settings
from hub.errors import ExitCode, TurnbackError


def main() -> int:
    """Run until stopped and return the exit code."""
    gc.disable()  # what is loaded now stays: looking through it again and again costs a tenth of the start
    settings.drop_git_environment()
    arguments = _arguments()
    home = settings.resolve_home(arguments.home)
    try:
        return asyncio.run(_serve(home, arguments.port))
    except TurnbackError as error:
        print(f"{error.message}{' ' + error.hint if error.hint else ''} [{error.code}]", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hub", description="Run the Turnback hub in the foreground.")
    parser.add_argument("--home", type=Path, help="state directory (default: TURNBACK_HOME, else the user data folder)")
    parser.add_argument("--port", type=int, help="port on loopback (default: chosen once and kept)")
    return parser.parse_args()


async def _serve(home: Path, port: int | None) -> int:
    # Late on purpose: a wrong setting is told before the daemon's rooms are loaded.
    loaded = settings.load(home, port=port)
    from hub.daemon.app import App

    app = App(loaded)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.ask_stop)
    await app.start()
    gc.freeze()
    gc.enable()
    await app.run()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)  # it is down: what is left is to leave with the right exit code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
