"""The ways back: restore, undo, redo. Each is planned, shown and agreed to before it is carried out.

Invariant: on a terminal nothing is changed before a person has seen the plan and said yes, unless `--yes`; elsewhere,
and with `--json`, it goes ahead, for what is there is always saved first. A dry run and the plan are the same call.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cli import output, progress, prompting, restore_plan
from cli.context import Link, with_link
from cli.invocation import invocation
from cli.restore_plan import Direction, Telling
from cli.targets import Place, Session, Workspace, in_worktree, is_here, target
from hub.domain.values import OnConflict, Reach, RestoreOnly
from hub.errors import RefusedError
from hub.protocol.views import RestoreView

QUESTIONS: dict[Direction, str] = {
    "restore": "Turn back?",
    "undo": "Undo the restore?",
    "redo": "Restore again what was undone?",
}
INTERRUPTS = (
    "Note: the run in progress is cancelled first. What it did last, and does until then, may differ from this plan."
)

Only = Annotated[RestoreOnly | None, typer.Option("--only", help="One part of it [both].")]
Paths = Annotated[
    list[str] | None, typer.Option("--paths", metavar="PATH", help="Only this file or folder (may be repeated).")
]
HowFar = Annotated[
    Reach | None,
    typer.Option(
        "--reach", help="The exact tree, or what this session alone changed [tree, unless others changed files too]."
    ),
]
HOW_FAR_BACK = "All as it was before, or what the restore alone changed [tree, unless files were changed since]."
Head = Annotated[bool, typer.Option("--head", help="Also move the branch back to the checkpoint's commit.")]
Conflict = Annotated[
    OnConflict,
    typer.Option("--on-conflict", help="A file changes meanwhile: take all back, leave it, or put it aside."),
]
Interrupt = Annotated[bool, typer.Option("--interrupt", help="Cancel a run that is in the way first.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
Full = Annotated[bool, typer.Option("--full", help="Show every path of the plan.")]


@dataclass(frozen=True)
class Wish:
    """A call that goes back or forward, without the words that decide whether it is carried out."""

    method: str
    params: dict[str, Any]
    telling: Telling


@dataclass(frozen=True, kw_only=True)
class Consent:
    """What was said on the command line about carrying it out."""

    dry_run: bool
    interrupt: bool
    yes: bool

    def asks(self, context: typer.Context) -> bool:
        """Return whether a person is to be asked first."""
        return not (self.dry_run or self.yes or invocation(context).json) and prompting.interactive()


@dataclass(frozen=True)
class Outcome:
    """What came of it. `plan` is what a person was shown just before, None: nobody was asked."""

    plan: RestoreView | None
    done: RestoreView
    telling: Telling


Wished = Callable[[Link], Coroutine[Any, Any, Wish]]


def restore(
    context: typer.Context,
    checkpoint: Annotated[str | None, typer.Argument(help="Id, or part of it [the newest before a run].")] = None,
    workspace: Workspace = None,
    session: Session = None,
    only: Only = None,
    paths: Paths = None,
    reach: HowFar = None,
    head: Head = False,
    on_conflict: Conflict = "abort",
    interrupt: Interrupt = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    full: Full = False,
) -> None:
    """Bring files, conversation or both back. What is there now is saved first, and `undo` brings it back."""
    place = Place(workspace, session)

    async def wished(link: Link) -> Wish:
        to = await target(link, checkpoint, place)
        params = {
            "checkpoint_id": to.id,
            "session_id": (await place.params(link)).get("session_id"),
            "only": only,
            "paths": in_worktree(paths or (), to.workspace),
            "reach": reach,
            "head": head,
            "on_conflict": on_conflict,
        }
        where = place.options(to.workspace)
        elsewhere = None if is_here(to.workspace) else to.workspace
        telling = Telling("restore", to.session_id, where, full=full, narrowed=bool(paths), elsewhere=elsewhere)
        return Wish("checkpoint.restore", params, telling)

    _carry_out(context, wished, Consent(dry_run=dry_run, interrupt=interrupt, yes=yes))


def _way(direction: Direction, told: str) -> Callable[..., None]:
    """Return the command that takes the newest restore back, or repeats it."""

    def command(
        context: typer.Context,
        workspace: Workspace = None,
        session: Session = None,
        reach: Annotated[Reach | None, typer.Option("--reach", help=HOW_FAR_BACK)] = None,
        on_conflict: Conflict = "abort",
        interrupt: Interrupt = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        full: Full = False,
    ) -> None:
        place = Place(workspace, session)

        async def wished(link: Link) -> Wish:
            where = await place.params(link)
            telling = Telling(direction, where.get("session_id"), place.options(), full)
            return Wish(f"checkpoint.{direction}", {**where, "reach": reach, "on_conflict": on_conflict}, telling)

        _carry_out(context, wished, Consent(dry_run=dry_run, interrupt=interrupt, yes=yes))

    command.__name__, command.__doc__ = direction, told
    return command


undo = _way("undo", "Undo the newest restore. What others have changed since it stays, unless --reach tree.")
redo = _way("redo", "Restore again what was undone last.")


def _carry_out(context: typer.Context, wished: Wished, consent: Consent) -> None:
    """Make the call, after the plan was shown and agreed to where that is asked for, and print its outcome."""

    async def carried_out(link: Link) -> Outcome:
        wish, plan = await wished(link), None
        call = partial(progress.call, context, link, wish.method, watch=wish.telling.session, **wish.params)
        if consent.asks(context):
            plan = await call(dry_run=True)
            output.draw(restore_plan.drawn(plan, await _learnt(link, wish.telling, plan)))
            await _confirm(wish.telling.direction, interrupt=consent.interrupt)
        done = await call(dry_run=consent.dry_run, interrupt=consent.interrupt, **_agreed(wish, plan))
        return Outcome(plan, done, await _learnt(link, wish.telling, done))

    outcome = with_link(context, carried_out)
    output.show(context, outcome.done, lambda _: _drawn(outcome))


def _agreed(wish: Wish, plan: RestoreView | None) -> dict[str, Any]:
    """Return what a person has agreed to beyond the command line: a plan that spares the changes of others."""
    spares = plan is not None and plan.reach == "session"
    return {"reach": "session"} if spares and not wish.params.get("head") else {}


def _drawn(outcome: Outcome) -> RenderableType:
    if outcome.plan is None:
        return restore_plan.drawn(outcome.done, outcome.telling)
    return restore_plan.outcome(outcome.plan, outcome.done, outcome.telling)


async def _learnt(link: Link, telling: Telling, view: RestoreView) -> Telling:
    """Return the telling with the session, which nobody has named where the newest restore of a workspace is meant."""
    if telling.session is not None or telling.direction == "restore":
        return telling
    found = await link.call("checkpoint.show", checkpoint_id=view.checkpoint)
    return replace(telling, session=found.session_id)


async def _confirm(direction: Direction, *, interrupt: bool) -> None:
    if interrupt:
        output.text(INTERRUPTS, "yellow")
    if not await prompting.confirm(QUESTIONS[direction]):
        raise RefusedError("Nothing was changed.", code="declined")
