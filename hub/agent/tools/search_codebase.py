"""search_codebase: regular expressions over the text files of the workspace.

ripgrep does it where it is installed, else a program of our own; both are asked for places only (file, line, column),
and the lines are read and shown here, so a result looks the same whichever found it. Both run as children that are
ended when the time is up.
Not promised: finding anything in files over MAX_FILE bytes, binary files, or the folders in EXCLUDED. Ignore files are
not consulted. Symlinks are never followed.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

from hub.agent.model import ToolSpec
from hub.agent.tools import scan
from hub.agent.tools.arguments import as_list, only_given, opened, text_of
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.hits import Collector, Hit, rendered
from hub.agent.tools.patterns import Pattern, portable
from hub.agent.tools.process import Ended, Launch, Runner
from hub.agent.tools.threads import in_thread
from hub.agent.tools.truncate import Cut, cut_middle, shortened

NAME = "search_codebase"
MAX_QUERIES = 20
MAX_HITS = 100  # of one query
MAX_DEPTH = 20  # folders
MAX_FILE = 32 * 1024 * 1024  # bytes
TIMEOUT_S = 30.0  # of one query
AT_ONCE = 2  # queries that run at the same time
TEXT_LIMIT = 48_000  # characters of one query's result
EXCLUDED = (
    *(".git", ".hg", ".svn", "node_modules", "bower_components", ".venv", "venv", "__pycache__", ".mypy_cache"),
    *(".pytest_cache", ".ruff_cache", ".tox", ".next", ".gradle", "dist", "build", "target"),
)

SPEC = ToolSpec(
    NAME,
    "Search the text files of the workspace, line by line, with regular expressions (case-sensitive; begin with (?i) "
    f"to ignore case). Returns at most {MAX_HITS} matching lines for each query, with the lines around them. Folders "
    "of dependencies, build output and version control are left out.",
    {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "maxItems": MAX_QUERIES,
                "description": "Regular expressions; without look-around and back-references.",
            }
        },
        "required": ["queries"],
        "additionalProperties": False,
    },
)

Engine = Literal["auto", "own"]


class SearchCodebase:
    """The tool. With engine "own", ripgrep is not used though it be there."""

    spec = SPEC
    effect: Effect = "read"

    def __init__(self, engine: Engine = "auto") -> None:
        self._engine = engine
        self._runner = Runner()

    def normalise(self, arguments: Any) -> dict[str, Any]:
        value = opened(arguments)
        given = opened(only_given(value, ("queries",), NAME)) if isinstance(value, dict) else value
        queries = [text_of(query, "A query") for query in as_list(given)]
        if not queries or not all(query.strip() for query in queries):
            raise ToolFailure("search_codebase needs at least one query, and none may be blank.")
        if len(queries) > MAX_QUERIES:
            raise ToolFailure(f"search_codebase takes at most {MAX_QUERIES} queries in one call, not {len(queries)}.")
        return {"queries": queries}

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        return Subject(f"search for {shortened(', '.join(arguments['queries']), 200)}", paths=(str(root),))

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._answer(query, context, room)) for query in arguments["queries"]]
        answers = [task.result() for task in asked]
        cuts = [cut_middle(text, TEXT_LIMIT) for _, text in answers]
        return ToolOutput(
            ok=all(ok for ok, _ in answers),
            text="\n\n".join(cut.text for cut in cuts),
            full_text=_full(answers, cuts),
        )

    async def _answer(self, query: str, context: ToolContext, room: asyncio.Semaphore) -> tuple[bool, str]:
        try:
            pattern = portable(query)
            async with room:
                return await self._search(query, pattern, context)
        except ToolFailure as failure:
            return False, f"{query!r}: {failure}"

    async def _search(self, query: str, pattern: Pattern, context: ToolContext) -> tuple[bool, str]:
        stop = asyncio.Event()
        collector = Collector(MAX_HITS, stop.set)
        launch = Launch(self._command(pattern, context), context.root, context.env)
        limit_s = min(TIMEOUT_S, context.remaining_s)
        ended = await self._runner.run(launch, context.watch, collector.feed, limit_s, stop)
        collector.finish()
        if ended.how == "exited" and ended.exit_code != 0 and collector.complaint:
            raise ToolFailure(f"The search failed: {collector.complaint}")
        shown = await in_thread(rendered, context.root, collector.hits[:MAX_HITS])
        heading = _heading(query, collector.hits, ended, limit_s)
        return ended.how != "timeout", f"{heading}\n{shown}".rstrip("\n")

    def _command(self, pattern: Pattern, context: ToolContext) -> tuple[str, ...]:
        ripgrep = trusted_ripgrep(context) if self._engine == "auto" else None
        return ripgrep_command(ripgrep, pattern) if ripgrep else own_command(pattern)


def trusted_ripgrep(context: ToolContext) -> str | None:
    """Return the path of ripgrep, if there is one that the workspace has not brought itself: searching asks nobody."""
    found = shutil.which("rg", path=context.env.get("PATH", ""))
    if found is None or not Path(found).is_absolute():
        return None
    places = (Path(found), Path(found).resolve())
    return None if any(place.is_relative_to(context.root) for place in places) else found


def ripgrep_command(program: str, pattern: Pattern) -> tuple[str, ...]:
    """Return the arguments that make ripgrep print places as `scan` does."""
    excluded = [part for name in EXCLUDED for part in ("--glob", f"!**/{name}/")]
    return (
        *(program, "--no-config", "--no-ignore", "--hidden", "--no-follow", "--no-messages", "--encoding", "none"),
        *("--sort", "path", "--max-depth", str(MAX_DEPTH), "--max-filesize", str(MAX_FILE), "--case-sensitive"),
        *("--color", "never", "--no-heading", "--with-filename", "--null", "--line-number", "--column"),
        *("--max-columns", "1", *excluded, "--regexp", pattern.ripgrep, "--", "."),
    )


def own_command(pattern: Pattern) -> tuple[str, ...]:
    """Return the arguments that run `scan`, isolated from the user's Python settings."""
    order = {"pattern": pattern.python, "excluded": EXCLUDED, "depth": MAX_DEPTH, "max_size": MAX_FILE}
    return (sys.executable, "-I", "-S", scan.__file__, json.dumps(order))


def _heading(query: str, hits: list[Hit], ended: Ended, limit_s: float) -> str:
    count = f"the first {MAX_HITS} matching lines" if len(hits) > MAX_HITS else f"{len(hits)} matching lines"
    if not hits:
        count = "no results"
    late = f" (ended after {limit_s:.3g} s, not everything was searched)" if ended.how == "timeout" else ""
    more = "; there are more, narrow the pattern" if len(hits) > MAX_HITS else ""
    return f"{query!r}: {count}{more}{late}"


def _full(answers: list[tuple[bool, str]], cuts: list[Cut]) -> str | None:
    return "\n\n".join(text for _, text in answers) if any(cut.cut for cut in cuts) else None
