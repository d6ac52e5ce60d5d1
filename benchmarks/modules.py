"""Which modules a program has loaded when it ends: the hub's after a scripted run, and those of the hubctl that asked.

It runs the real programs with a few lines ahead of them that write `sys.modules` to a file at the end.
"""

from pathlib import Path

from benchmarks.measuring import time_of
from benchmarks.processes import PYTHON, environment, running_hub

HEAVY = ("litellm", "slack_bolt", "slack_sdk", "telegram", "apscheduler")
"""What belongs into processes of its own, never into the hub or hubctl."""

_AHEAD = """
import atexit, pathlib, runpy, sys
out, module, *rest = sys.argv[1:]
sys.argv = [module, *rest]
atexit.register(lambda: pathlib.Path(out).write_text("\\n".join(sorted(sys.modules))))
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


async def loaded_by_a_scripted_run(folder: Path, repository: Path, model: str) -> dict[str, frozenset[str]]:
    """Return the modules that `hub` and `hubctl` had loaded after one run, by program. Raises RuntimeError when the run
    did not complete."""
    hub_list, cli_list, home = folder / "hub.txt", folder / "hubctl.txt", folder / "home"
    async with running_hub(home, command=_recording(hub_list, "hub")):
        words = ["--home", str(home), "run", "-w", str(repository), "--model", model, "--json", "Say it."]
        time_of([*_recording(cli_list, "cli.main"), *words], environment())
    return {"hub": _names(hub_list), "hubctl": _names(cli_list)}


def heavy_ones(names: frozenset[str]) -> list[str]:
    """Return the heavy libraries of which some module is among the names."""
    tops = {name.partition(".")[0] for name in names}
    return [name for name in HEAVY if name in tops]


def _recording(out: Path, module: str) -> list[str]:
    return [PYTHON, "-c", _AHEAD, str(out), module]


def _names(path: Path) -> frozenset[str]:
    return frozenset(path.read_text().split())
