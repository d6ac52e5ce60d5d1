"""Each command on checkpoints: what reaches the hub, what is printed, and the exit code."""

from pathlib import Path

import pytest

from cli.keeping import bytes_of
from hub.errors import ConflictError
from hub.protocol.views import ChangeView, DiffView, FindingView, UncapturedView, WorkspaceView
from tests.cli import given
from tests.cli.conftest import Call
from tests.cli.fakehub import AT, FakeHub
from tests.cli.given import CHECKPOINT, SESSION


def test_checkpoints_of_a_folder_without_a_session(hub: FakeHub, call: Call, tmp_path: Path) -> None:
    saved = given.checkpoint(uncaptured=[UncapturedView(path="big.bin", why="too large")])
    hub.answers |= {"checkpoint.create": saved, "checkpoint.list": [given.checkpoint()]}
    made = call("checkpoint", "create", "-w", str(tmp_path), "--note", "before lunch", "--json").json
    assert {"id", "ref", "commit", "files", "uncaptured"} <= set(made)
    assert call("checkpoint", "list", "-w", str(tmp_path), "--json").json[0]["id"] == CHECKPOINT
    sent = hub.params_of("checkpoint.create")[0]
    assert (sent["workspace"], sent["note"]) == (str(tmp_path), "before lunch")
    assert "big.bin: too large" in call("checkpoint", "create", "-w", str(tmp_path)).out


def test_checkpoints_of_several_sessions_name_them(hub: FakeHub, call: Call) -> None:
    one, other = given.checkpoint(session_id=SESSION), given.checkpoint(session_id=SESSION[:-1] + "Z")
    hub.answers["checkpoint.list"] = [one, other]
    shown = call("checkpoint", "list").out
    assert all(f"  {view.session_id[-6:]}  " in shown for view in (one, other))
    hub.answers["checkpoint.list"] = [one]
    assert SESSION[-6:] not in call("checkpoint", "list").out


def test_workspace_is_here_by_default(
    hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answers["checkpoint.list"] = []
    monkeypatch.chdir(tmp_path)
    call("checkpoint", "list")
    call("checkpoint", "list", "-w", "registered-name")
    assert [sent["workspace"] for sent in hub.params_of("checkpoint.list")] == [str(tmp_path), "registered-name"]


def test_restore_passes_on_what_was_asked(hub: FakeHub, call: Call) -> None:
    hub.answers |= {"checkpoint.show": given.checkpoint(), "checkpoint.restore": given.restore(dry_run=True)}
    options = ("--only", "files", "--reach", "session", "--head", "--on-conflict", "keep-mine")
    said = call("checkpoint", "restore", CHECKPOINT, *options, "--dry-run", "--interrupt", "--json")
    assert {"restored", "created", "deleted", "kept", "conflicts", "head_moved", "effects", "undo", "dry_run"} <= set(
        said.json
    )
    sent = hub.params_of("checkpoint.restore")[0]
    assert (sent["only"], sent["reach"], sent["head"], sent["on_conflict"]) == ("files", "session", True, "keep-mine")
    assert (sent["dry_run"], sent["interrupt"], sent.get("paths")) == (True, True, None)


def test_restore_without_an_id_takes_the_newest_that_is_no_undo_point(hub: FakeHub, call: Call) -> None:
    gone = given.checkpoint(id=CHECKPOINT[:-1] + "0", pruned_at=AT)
    hub.answers |= {"checkpoint.list": [gone, given.checkpoint()], "checkpoint.restore": given.restore()}
    assert call("checkpoint", "restore", "--session", SESSION).code == 0
    assert hub.params_of("checkpoint.list")[0]["kinds"] == ["before", "manual"]
    assert hub.params_of("checkpoint.list")[0]["session_id"] == SESSION
    assert hub.params_of("checkpoint.restore")[0]["checkpoint_id"] == CHECKPOINT
    hub.answers["checkpoint.list"] = []
    assert call("checkpoint", "restore").code == 5


def test_diff_and_undo(hub: FakeHub, call: Call) -> None:
    change = ChangeView(path="a.py", kind="modified", added=1, removed=None)
    hub.answers |= {
        "checkpoint.diff": DiffView(changes=[change], patch="--- a\n+++ b\n+x\n"),
        "checkpoint.undo": given.restore(),
        "checkpoint.show": given.checkpoint(),
    }
    assert "+x" in call("checkpoint", "diff", CHECKPOINT, "--patch").out
    assert call("checkpoint", "undo", "--session", SESSION, "--json").json["undo"] == "ckp_undo"
    assert call("checkpoint", "show", CHECKPOINT, "--json").json["id"] == CHECKPOINT


@pytest.mark.parametrize("way", ["undo", "redo"])
def test_the_way_back_of_each_way(hub: FakeHub, call: Call, way: str) -> None:
    hub.answers[f"checkpoint.{way}"] = given.restore()
    options = ("--on-conflict", "take-checkpoint", "--interrupt")
    shown = call("checkpoint", way, "--session", SESSION, *options).out
    back = {"undo": "redo", "redo": "undo"}[way]
    assert f"To take it back: hubctl checkpoint {back} --session {SESSION}\n" in shown
    sent = hub.params_of(f"checkpoint.{way}")[0]
    assert (sent["session_id"], sent["on_conflict"], sent["interrupt"]) == (SESSION, "take-checkpoint", True)


def test_a_conversation_came_back_only_if_it_had_gone(hub: FakeHub, call: Call) -> None:
    hub.answers |= {"checkpoint.undo": given.restore(), "checkpoint.show": given.checkpoint(session_id=SESSION)}
    assert "came back as far as" in call("checkpoint", "undo", "-w", "shop").out
    hub.answers["checkpoint.undo"] = given.restore(conversation=False)
    shown = call("checkpoint", "undo", "-w", "shop").out
    assert "came back" not in shown
    assert "hubctl checkpoint redo -w shop\n" in shown


def test_the_way_back_leads_to_the_same_place(
    hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answers |= {
        "checkpoint.show": given.checkpoint(workspace=str(tmp_path)),
        "checkpoint.restore": given.restore(),
    }
    assert (
        f"hubctl checkpoint undo -w {tmp_path}  (or restore ckp_undo)" in call("checkpoint", "restore", CHECKPOINT).out
    )
    monkeypatch.chdir(tmp_path)
    assert "hubctl checkpoint undo  (or restore ckp_undo)" in call("checkpoint", "restore", CHECKPOINT).out


@pytest.mark.parametrize("command", ["restore", "show", "keep", "diff"])
@pytest.mark.parametrize("place", ["shop", "inside", "elsewhere"])
def test_a_checkpoint_of_another_workspace_is_refused(
    hub: FakeHub, call: Call, tmp_path: Path, command: str, place: str
) -> None:
    (tmp_path / "repo/src").mkdir(parents=True)
    known = WorkspaceView(id="wsp_1", name="shop", path=str(tmp_path / "repo"), checkpoint=None, created_at=AT)
    view = given.checkpoint(workspace=str(tmp_path / "repo"))
    hub.answers |= {
        "workspace.list": [known],
        "checkpoint.show": view,
        "checkpoint.keep": view,
        "checkpoint.diff": DiffView(changes=[], patch=None),
        "checkpoint.restore": given.restore(),
    }
    where = {"shop": "shop", "inside": str(tmp_path / "repo/src"), "elsewhere": str(tmp_path)}[place]
    said = call("checkpoint", command, CHECKPOINT, "-w", where, "--json")
    if place == "elsewhere":
        assert (said.code, said.error["code"]) == (3, "other_workspace")
        assert {name for name, _ in hub.calls} == {"hub.hello", "checkpoint.show"}
    else:
        assert said.code == 0


def test_a_place_is_named_once(hub: FakeHub, call: Call) -> None:
    assert call("checkpoint", "list", "-w", "shop", "--session", SESSION).code == 2
    assert hub.calls == []


def test_paths_are_of_the_current_directory(
    hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo/src").mkdir(parents=True)
    (tmp_path / "link").symlink_to("repo")
    hub.answers |= {
        "checkpoint.show": given.checkpoint(workspace=str(tmp_path / "repo")),
        "checkpoint.restore": given.restore(dry_run=True),
    }
    monkeypatch.chdir(tmp_path / "repo/src")
    given_paths = ("a.py", "../gone/b.py", str(tmp_path / "link/c.py"), "..")
    options = [word for path in given_paths for word in ("--paths", path)]
    assert call("checkpoint", "restore", CHECKPOINT, "--dry-run", *options).code == 0
    assert hub.params_of("checkpoint.restore")[0]["paths"] == ["src/a.py", "gone/b.py", "c.py", "."]


@pytest.mark.parametrize("path", ["../../elsewhere", "/etc/passwd", "", "../../repository/x"])
def test_a_path_that_leads_elsewhere_is_refused(
    hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "repo/src").mkdir(parents=True)
    hub.answers["checkpoint.show"] = given.checkpoint(workspace=str(tmp_path / "repo"))
    monkeypatch.chdir(tmp_path / "repo/src")
    said = call("checkpoint", "restore", CHECKPOINT, "--paths", path, "--json")
    assert (said.code, said.error["code"]) == (2, "path_outside")
    assert hub.params_of("checkpoint.restore") == []


def test_the_list_marks_protected_and_pruned_ones(hub: FakeHub, call: Call) -> None:
    hub.answers["checkpoint.list"] = [
        given.checkpoint(protected=True, note="before lunch"),
        given.checkpoint(pruned_at=AT, uncaptured=[UncapturedView(path="big.bin", why="too large")]),
    ]
    shown = call("checkpoint", "list").out
    assert "protected · before lunch" in shown
    assert "its files are gone · 1 path not in it" in shown
    call("checkpoint", "list", "--all")
    first, second = hub.params_of("checkpoint.list")
    assert set(first.get("kinds", ())) <= {"before", "manual", "undo"}
    assert {"step", "left", "back", "after"} < set(second["kinds"])


def test_keep_protects_and_off_ends_it(hub: FakeHub, call: Call) -> None:
    hub.answers["checkpoint.keep"] = lambda params: given.checkpoint(protected=params["keep"])
    hub.answers["checkpoint.list"] = [given.checkpoint()]
    assert "is protected" in call("checkpoint", "keep", CHECKPOINT[-5:]).out
    assert "not protected any more" in call("checkpoint", "keep", CHECKPOINT, "--off").out
    assert [sent["checkpoint_id"] for sent in hub.params_of("checkpoint.keep")] == [CHECKPOINT, CHECKPOINT]


def test_prune_by_limits(hub: FakeHub, call: Call, tmp_path: Path) -> None:
    hub.answers |= {"checkpoint.prune": given.pruned(dry_run=True), "session.get": given.session(workspace="/repo")}
    limits = ("--runs", "5", "--days", "2.5", "--max-size", "2G")
    shown = call("checkpoint", "prune", "-w", str(tmp_path), *limits, "--dry-run").out
    assert "Would delete 1 checkpoint, about 2.0 KiB of 1.0 MiB; 4 would stay." in shown
    sent = hub.params_of("checkpoint.prune")[0]
    assert (sent["runs"], sent["days"], sent["max_bytes"], sent["dry_run"]) == (5, 2.5, 2 << 30, True)
    call("checkpoint", "prune", "--session", SESSION)
    sent = hub.params_of("checkpoint.prune")[1]
    assert (sent["workspace"], sent.get("runs"), sent["dry_run"]) == ("/repo", None, False)


@pytest.mark.parametrize(
    ("text", "count"), [("1024", 1024), ("10k", 10 << 10), ("1.5 MB", 3 << 19), ("2GiB", 2 << 30), ("0", 0)]
)
def test_sizes(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "G", "2X", "-1", "1e3", "2GG"])
def test_what_is_no_size(call: Call, text: str) -> None:
    said = call("checkpoint", "prune", "--max-size", text, "--json")
    assert (said.code, "such as 2G" in said.error["message"]) == (2, True)


def test_purge_needs_a_yes_where_nobody_can_be_asked(hub: FakeHub, call: Call) -> None:
    hub.answers["checkpoint.purge"] = lambda params: given.pruned(dry_run=params["dry_run"])
    said = call("checkpoint", "purge", "--session", SESSION, "--json")
    assert (said.code, said.error["code"]) == (2, "needs_yes")
    assert hub.calls == []
    assert call("checkpoint", "purge", "--session", SESSION, "--dry-run", "--json").json["dry_run"] is True
    assert "Deleted 1 checkpoint" in call("checkpoint", "purge", "--session", SESSION, "--yes").out


@pytest.mark.parametrize(("sound", "code"), [(True, 0), (False, 1)])
def test_verify_says_whether_all_is_sound(hub: FakeHub, call: Call, sound: bool, code: int) -> None:
    found = FindingView(kind="incomplete", name="ses/1", text="Objects are missing.", repaired=False)
    left = FindingView(kind="leftover", name="x.tmp", text="A temporary file.", repaired=True)
    view = given.verified(sound=sound, complete=2, findings=[found, left])
    hub.answers["checkpoint.verify"] = view
    said = call("checkpoint", "verify", "--repair", "--deep")
    assert said.code == code
    for words in ("2 of 3 checkpoints whole", "incomplete", "Objects are missing.", "repaired: A temporary file."):
        assert words in said.out
    sent = hub.params_of("checkpoint.verify")[0]
    assert (sent["repair"], sent["deep"]) == (True, True)
    again = call("checkpoint", "verify", "--json")
    assert (again.code, again.json["sound"]) == (code, sound)


def test_export_prints_commands_that_can_be_copied(
    hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CHECKPOINT[:-1] + "0"
    hub.answers |= {"checkpoint.export": given.exported(), "checkpoint.list": [given.checkpoint(id=other)]}
    monkeypatch.chdir(tmp_path)
    shown = call("checkpoint", "export", CHECKPOINT, other[-4:], "saved.bundle", "--force").out
    assert "  git fetch -q '/tmp/two  blanks.bundle' 'refs/*'\n" in shown
    sent = hub.params_of("checkpoint.export")[0]
    assert sent["checkpoint_ids"] == [CHECKPOINT, other]
    assert (sent["path"], sent["overwrite"]) == (str(tmp_path / "saved.bundle"), True)
    assert call("checkpoint", "export", CHECKPOINT).code == 2
    hub.answers["checkpoint.export"] = ConflictError("It exists already.", code="file_exists")
    said = call("checkpoint", "export", CHECKPOINT, "saved.bundle", "--json")
    assert (said.code, "--force" in said.error["hint"]) == (6, True)


def test_a_session_is_forked_renamed_archived(hub: FakeHub, call: Call, tmp_path: Path) -> None:
    fork = given.session(id=SESSION[:-1] + "Z", forked_from=SESSION)
    hub.answers |= {
        "checkpoint.list": [given.checkpoint(session_id=SESSION)],
        "session.fork": fork,
        "session.update": lambda params: given.session(title=params["title"]),
        "session.archive": given.session(state="archived"),
    }
    shown = call("session", "fork", SESSION, "--at", CHECKPOINT[-5:], "--worktree", str(tmp_path / "w"), "--title", "B")
    assert f"hubctl run --session {fork.id} PROMPT" in shown.out
    sent = hub.params_of("session.fork")[0]
    assert (sent["session_id"], sent["checkpoint_id"], sent["title"]) == (SESSION, CHECKPOINT, "B")
    assert sent["worktree"] == str(tmp_path / "w")
    assert call("session", "rename", SESSION, "Better", "--json").json["title"] == "Better"
    assert "archived" in call("session", "archive", SESSION).out
    assert call("session", "fork", SESSION).code == 2


def test_a_run_without_a_checkpoint_says_why(hub: FakeHub, call: Call) -> None:
    hub.answers |= {
        "session.get": given.session(),
        "session.messages": {"messages": [], "next_after": None, "last_seq": 3},
        "run.list": [given.run_view(no_checkpoint="checkpoint.mode is off")],
    }
    assert "no checkpoint: checkpoint.mode is off" in call("show", SESSION).out
