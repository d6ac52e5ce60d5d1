"""How a prompt becomes a run: its place is taken first, then one transaction takes the prompt and makes the run.

A prompt for an idle session gets there at once: the run is made in the transaction that stores the prompt.
"""

import msgspec

from hub.agent.system import digest, system_prompt
from hub.daemon.services import Services
from hub.domain.runs import RunLimits, RunSpec
from hub.protocol.params import RunOptions
from hub.store import prompts, runs, sessions
from hub.store.database import Transaction
from hub.store.prompts import Pending


class Place(msgspec.Struct, frozen=True):
    """A directory to work in, resolved, and the worktree that it lies in."""

    workspace: str
    worktree: str


class Opening(msgspec.Struct, frozen=True):
    """A place that is held for a run which may be made now; whoever asked for it gives it back if none was made."""

    run_id: str
    place: Place


KNOWN_PLACES = 10_000
"""Sessions whose place is remembered; it never changes."""


class Starter:
    """Makes runs of prompts with what a run's spec freezes: model, modes, limits, system prompt, author, address."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._places: dict[str, Place] = {}

    async def place_of(self, session_id: str) -> Place:
        """Return where a session works. Raises NotFoundError with code unknown_session."""
        if session_id not in self._places:
            row = await self._services.database.read(lambda conn: sessions.row(conn, session_id))
            if len(self._places) >= KNOWN_PLACES:
                self._places.clear()
            self._places[session_id] = Place(row.workspace, row.worktree)
        return self._places[session_id]

    async def model_before(self, session_id: str, options: RunOptions) -> str | None:
        """Return the model the session goes on with; not asked for when the prompt names one."""
        if options.model is not None:
            return None
        return await self._services.database.read(lambda conn: prompts.last_model(conn, session_id))

    def make(self, tx: Transaction, opening: Opening, prompt: Pending, before: str | None) -> None:
        """Take a pending prompt and make its run. Raises IllegalMove when it is not pending any more."""
        spec = self._spec(opening.place, prompt, before)
        runs.start(tx, opening.run_id, prompt, spec, self._services.identity.boot_id)

    def _spec(self, place: Place, prompt: Pending, before: str | None) -> RunSpec:
        options = prompt.options
        return RunSpec(
            model=self._services.models.choose(options.model, before),
            agent_mode=options.agent_mode,
            preset=options.preset,
            auto_approve=options.auto_approve,
            limits=self._limits(options),
            workspace=place.workspace,
            worktree=place.worktree,
            system_digest=digest(system_prompt(place.workspace, options.agent_mode)),
            author=prompt.author,
            address=prompt.address,
        )

    def _limits(self, options: RunOptions) -> RunLimits:
        ours, wanted = self._services.settings.config.runs, options.limits
        return RunLimits(
            max_turns=min(wanted.max_turns or ours.max_turns, ours.max_turns),
            max_tool_calls=min(wanted.max_tool_calls or ours.max_tool_calls, ours.max_tool_calls),
            max_wall_s=min(wanted.max_wall_s or ours.max_wall_s, ours.max_wall_s),
            max_cost=_lower(wanted.max_cost, ours.max_cost),
        )


def _lower(one: float | None, other: float | None) -> float | None:
    given = [bound for bound in (one, other) if bound is not None]
    return min(given) if given else None
