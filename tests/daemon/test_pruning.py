"""Checkpoints are pruned by themselves, by what is configured, while nobody writes in the worktree."""

from pathlib import Path

from hub.daemon.pruning import Pruner
from tests.daemon.homes import running_app
from tests.hubs import ended, make_repo, scenario, submit

CONFIG = """
[checkpoint]
keep_runs = 1
[hooks]
checkpoint_before = "echo saved"
"""


async def test_a_worktree_is_pruned_once_nobody_writes_there(tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: fine}]")
    async with running_app(tmp_path / "home", CONFIG) as (app, client):
        services, saved = app.services, tmp_path / "home" / "hooks"
        pruner = Pruner(services)
        accepted = await submit(client, repo, model, "one")
        seq = (await ended(client, accepted.session_id))[-1].seq
        for text in ("two", "three"):
            await client.call("prompt.submit", session_id=accepted.session_id, text=text)
            seq = (await ended(client, accepted.session_id, after=seq))[-1].seq
        taken = list(reversed(await client.call("checkpoint.list", session_id=accepted.session_id)))
        assert {place.name for place in saved.iterdir()} == {view.id for view in taken}

        await pruner.look()
        assert services.admission.try_enter(str(repo), "somebody")
        await pruner.work()
        assert all(view.pruned_at is None for view in await client.call("checkpoint.list"))
        services.admission.leave("somebody")
        await pruner.work()
        left = {view.id: view.pruned_at for view in await client.call("checkpoint.list")}
        assert [left[view.id] is None for view in taken] == [True, False, True]
        assert {place.name for place in saved.iterdir()} == {taken[0].id, taken[2].id}
        assert services.admission.holder(str(repo)) is None

        await pruner.look()
        (repo / ".git").rename(repo / "gone")
        await client.call("checkpoint.list")
        await pruner.work()
        assert services.admission.holder(str(repo)) is None


async def test_what_is_not_found_was_not_pruned(tmp_path: Path) -> None:
    """A hub that meets the folder without its repository must not say that the checkpoints are gone for good."""
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: fine}]")
    async with running_app(tmp_path / "home", CONFIG) as (_, client):
        await ended(client, (await submit(client, repo, model)).session_id)
    (repo / ".git").rename(tmp_path / "away")
    async with running_app(tmp_path / "home", CONFIG) as (app, client):
        pruner = Pruner(app.services)
        await pruner.look()
        await pruner.work()
        (view,) = await client.call("checkpoint.list")
        assert view.pruned_at is None
        assert [place.name for place in (tmp_path / "home" / "hooks").iterdir()] == [view.id]
