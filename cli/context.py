"""A command's way to the hub.

A command is: arguments, one call, one print. `call` makes the whole way for a command that asks once; `Link` is for
commands that talk for longer: it connects when it is first used, and repeats a call that a lost connection cut off
under the same idempotency key, so that nothing happens twice.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from cli import starting
from cli.invocation import invocation
from hub import settings
from hub.client import HubClient
from hub.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from hub.protocol.methods import METHODS

T = TypeVar("T")

RECONNECTS = 3
PAUSE_S = 0.2
ABSENT = ("connection_lost", "no_hub", "no_answer")
"""Codes of a hub that is not there, and may come back."""
FULL_ID = re.compile(r"[a-z]+_[0-9A-HJKMNP-TV-Z]{26}")


def home_of(context: typer.Context) -> Path:
    """Return the home that this command line means."""
    return settings.resolve_home(invocation(context).home_flag)


class Link:
    """A connection to the hub of a home, made when first used. `start`: start a hub when none runs."""

    def __init__(self, home: Path, *, start: bool = True) -> None:
        self.home = home
        self._start = start
        self._patience_s = 0.0
        self._client: HubClient | None = None

    def await_hub(self, patience_s: float) -> None:
        """From now on start no hub, for somebody may have stopped it; wait so long for one to come back."""
        self._start, self._patience_s = False, patience_s

    async def connect(self) -> HubClient:
        """Return a new connection that the caller closes. Raises UnavailableError."""
        return await starting.connect(self.home, start=self._start)

    async def reconnect(self) -> HubClient:
        """Return a new connection to a hub that runs already. Raises UnavailableError code no_hub."""
        return await starting.connect(self.home, start=False)

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call, and call again with the same key when the connection was lost before the answer came."""
        if METHODS[method].mutating:
            params.setdefault("idempotency_key", new_key())
        clock = asyncio.get_running_loop()
        give_up_at, attempts = clock.time() + self._patience_s, 0
        while True:
            try:
                return await (await self.client()).call(method, **params)
            except UnavailableError as error:
                attempts += 1
                lost = error.code == "connection_lost" and attempts <= RECONNECTS
                if not lost and (error.code not in ABSENT or clock.time() >= give_up_at):
                    raise
                await self.close()
            await asyncio.sleep(0 if attempts == 1 else PAUSE_S)

    async def client(self) -> HubClient:
        """Return the connection of this link."""
        if self._client is None:
            self._client = await self.connect()
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> "Link":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def new_key() -> str:
    """Return a fresh idempotency key."""
    return secrets.token_hex(16)


def with_link(context: typer.Context, work: Callable[[Link], Coroutine[Any, Any, T]], *, start: bool = True) -> T:
    """Run the work on a link to this command's hub and return what it returns."""

    async def linked() -> T:
        async with Link(home_of(context), start=start) as link:
            return await work(link)

    return asyncio.run(linked())


def call(context: typer.Context, method: str, /, *, start: bool = True, **params: Any) -> Any:
    """Make one call and return its typed result."""
    return with_link(context, lambda link: link.call(method, **params), start=start)


def workspace_of(chosen: str | None) -> str:
    """Return what the hub is to be told of `-w`: an absolute path, or a registered name. Default: here.

    What exists as a directory, or is written like a path, is a path.
    """
    path = Path(chosen or ".").expanduser()
    if chosen is None or path.is_dir() or "/" in chosen or chosen.startswith("."):
        return str(path.absolute())
    return chosen


async def session_id(link: Link, given: str) -> str:
    """Return the id of the session meant by a whole id or a unique part at its start or end."""
    if FULL_ID.fullmatch(given):
        return given
    return pick(given, [view.id for view in await link.call("session.list", archived=True, limit=1000)], "session")


async def approval_id(link: Link, given: str) -> str:
    """Return the id of the approval meant by a whole id or a unique part at its start or end."""
    if FULL_ID.fullmatch(given):
        return given
    opened = await link.call("approval.list", state="open", limit=1000)
    try:
        return pick(given, [view.id for view in opened], "approval")
    except NotFoundError:
        every = await link.call("approval.list", state="all", limit=1000)
        return pick(given, [view.id for view in every], "approval")


def pick(given: str, ids: Sequence[str], noun: str) -> str:
    """Return the one id that starts (with or without its prefix) or ends with `given`.

    Raises NotFoundError code unknown_<noun>, ConflictError code ambiguous_id, UsageError for an empty text.
    """
    part = given.strip().upper()
    if not part:
        raise UsageError(f"Give the id of the {noun}, or the last characters of it.")
    matches = [id for id in ids if _matches(part, id.upper())]
    if not matches:
        raise NotFoundError(f"No {noun} has the id {given!r}.", code=f"unknown_{noun}")
    if len(matches) > 1:
        raise ConflictError(
            f"{given!r} stands for {len(matches)} ids: {', '.join(matches[:5])}.",
            code="ambiguous_id",
            hint="Give more characters.",
        )
    return matches[0]


def _matches(part: str, id: str) -> bool:
    return id.startswith(part) or id.endswith(part) or id.partition("_")[2].startswith(part)
