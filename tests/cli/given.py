"""Views and events that tests begin with, and ways to call `hubctl`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hub.protocol.views import (
    ApprovalView,
    CheckpointView,
    DeliveryView,
    ExportedView,
    PromptAccepted,
    PrunedItemView,
    PrunedView,
    QuestionView,
    RestoreView,
    RunView,
    SessionView,
    Status,
    Usage,
    VerifiedView,
)
from tests.cli.fakehub import AT, FakeHub

ROOT = Path(__file__).parents[2]
SESSION = "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV"
RUN = "run_01ARZ3NDEKTSV4RRFFQ69G5FAW"
PROMPT = "prm_01ARZ3NDEKTSV4RRFFQ69G5FAX"
APPROVAL = "apr_01ARZ3NDEKTSV4RRFFQ69G5FAY"
CHECKPOINT = "ckp_01ARZ3NDEKTSV4RRFFQ69G5FAZ"
CALL = "call_01ARZ3NDEKTSV4RRFFQ69G5FA0"
LATER = "2099-01-01T00:00:00.000Z"


def status(**change: Any) -> Status:
    fields: dict[str, Any] = {
        "pid": 1,
        "url": "ws://127.0.0.1:1/rpc",
        "version": "0.1.0",
        "ready": True,
        "draining": False,
        "hub_id": "hub_1",
        "boot_id": "boot_1",
        "home": "/home",
        "started_at": AT,
        "default_model": None,
        "sessions": 1,
        "runs_active": 0,
        "approvals_open": 0,
        "components": {"store": "ok"},
    }
    return Status(**{**fields, **change})


def session(**change: Any) -> SessionView:
    fields: dict[str, Any] = {
        "id": SESSION,
        "workspace": "/repo",
        "title": "Fix it",
        "state": "idle",
        "run_count": 1,
        "active_run_id": None,
        "pending_prompts": 0,
        "last_seq": 0,
        "forked_from": None,
        "created_at": AT,
        "updated_at": AT,
    }
    return SessionView(**{**fields, **change})


def accepted(**change: Any) -> PromptAccepted:
    fields: dict[str, Any] = {
        "prompt_id": PROMPT,
        "session_id": SESSION,
        "mode": "follow_up",
        "position": 1,
        "run_id": None,
    }
    return PromptAccepted(**{**fields, **change})


def run_view(**change: Any) -> RunView:
    fields: dict[str, Any] = {
        "id": RUN,
        "session_id": SESSION,
        "run_count": 1,
        "state": "completed",
        "stop_reason": "completed",
        "error": None,
        "model": "scripted:x.yaml",
        "agent_mode": "act",
        "preset": "default",
        "prompt_id": PROMPT,
        "turns": 1,
        "tool_calls": 0,
        "usage": Usage(),
        "cost": None,
        "files_changed": [],
        "checkpoint_id": None,
        "no_checkpoint": None,
        "superseded": False,
        "created_at": AT,
        "started_at": AT,
        "ended_at": AT,
    }
    return RunView(**{**fields, **change})


def approval(**change: Any) -> ApprovalView:
    fields: dict[str, Any] = {
        "id": APPROVAL,
        "session_id": SESSION,
        "run_id": RUN,
        "call_id": CALL,
        "batch_id": "bat_1",
        "state": "open",
        "tool": "run_commands",
        "summary": "make test",
        "arguments": {"commands": ["make test"]},
        "arguments_hash": "0",
        "cwd": "/repo",
        "reason": "commands ask",
        "preview": None,
        "created_at": AT,
        "expires_at": LATER,
        "decision": None,
        "decided_by": None,
        "decided_at": None,
        "message": None,
    }
    return ApprovalView(**{**fields, **change})


def question(**change: Any) -> QuestionView:
    fields: dict[str, Any] = {
        "id": "qst_01ARZ3NDEKTSV4RRFFQ69G5FA1",
        "session_id": SESSION,
        "run_id": RUN,
        "call_id": CALL,
        "state": "open",
        "question": "Which database?",
        "options": ["sqlite", "postgres"],
        "created_at": AT,
        "expires_at": LATER,
        "answer": None,
        "answered_by": None,
    }
    return QuestionView(**{**fields, **change})


def checkpoint(**change: Any) -> CheckpointView:
    fields: dict[str, Any] = {
        "id": CHECKPOINT,
        "session_id": None,
        "run_id": None,
        "run_count": None,
        "workspace": "/repo",
        "kind": "manual",
        "ref": "refs/turnback/ws-00000000/1",
        "commit": "c0ffee",
        "files": 3,
        "uncaptured": [],
        "head": "c0ffee",
        "branch": "main",
        "note": "",
        "prompt": None,
        "protected": False,
        "pruned_at": None,
        "created_at": AT,
    }
    return CheckpointView(**{**fields, **change})


def restore(**change: Any) -> RestoreView:
    fields: dict[str, Any] = {
        "dry_run": False,
        "checkpoint": CHECKPOINT,
        "undo": "ckp_undo",
        "reach": "tree",
        "restored": ["a.py"],
        "created": [],
        "deleted": [],
        "changes": [],
        "kept": [],
        "conflicts": [],
        "index_changes": [],
        "head_moved": False,
        "head": None,
        "notes": [],
        "effects": [],
        "conversation": True,
        "messages": 0,
        "runs": [],
        "cancelled": [],
        "resumed": [],
    }
    return RestoreView(**{**fields, **change})


def pruned(**change: Any) -> PrunedView:
    gone = PrunedItemView(checkpoint_id=CHECKPOINT, ref="ses/1", why="purged", bytes=2048)
    fields: dict[str, Any] = {
        "pruned": [gone],
        "kept": 4,
        "bytes_before": 1 << 20,
        "bytes_pruned": 2048,
        "dry_run": False,
    }
    return PrunedView(**{**fields, **change})


def verified(**change: Any) -> VerifiedView:
    fields: dict[str, Any] = {"checkpoints": 3, "complete": 3, "deep": False, "sound": True, "findings": []}
    return VerifiedView(**{**fields, **change})


def exported(**change: Any) -> ExportedView:
    fields: dict[str, Any] = {
        "path": "/tmp/saved.bundle",
        "refs": ["ses/1"],
        "bytes": 2048,
        "commands": ["git init -q restored && cd restored", "git fetch -q '/tmp/two  blanks.bundle' 'refs/*'"],
    }
    return ExportedView(**{**fields, **change})


def delivery(**change: Any) -> DeliveryView:
    fields: dict[str, Any] = {
        "id": "dlv_1",
        "session_id": SESSION,
        "run_id": RUN,
        "address": "terminal:",
        "state": "pending",
        "text": "It is done.",
        "created_at": AT,
        "sent_at": None,
    }
    return DeliveryView(**{**fields, **change})


ENDED: dict[str, Any] = {
    "stop_reason": "completed",
    "error": None,
    "text": "done",
    "usage": {"input_tokens": 10, "output_tokens": 2, "cached_tokens": None},
    "cost": None,
    "files_changed": ["a.py"],
    "turns": 1,
    "tool_calls": 0,
    "checkpoint_id": CHECKPOINT,
    "no_checkpoint": None,
}


def starts(hub: FakeHub, run_id: str = RUN, prompt_id: str = PROMPT) -> None:
    """The prompt becomes a run."""
    hub.emit("prompt.taken", session_id=SESSION, run_id=run_id, prompt_id=prompt_id, as_steer=False)
    hub.emit(
        "run.started",
        session_id=SESSION,
        run_id=run_id,
        run_count=1,
        prompt_id=prompt_id,
        model="scripted:x.yaml",
        agent_mode="act",
        preset="default",
    )


def ends(hub: FakeHub, type: str = "run.completed", run_id: str = RUN, **change: Any) -> None:
    """The run ends."""
    hub.emit(type, session_id=SESSION, run_id=run_id, **{**ENDED, **change})


def opens(hub: FakeHub, view: ApprovalView | None = None) -> None:
    """A call asks."""
    view = view or approval()
    hub.answers["approval.list"] = [view]
    hub.emit(
        "approval.opened",
        session_id=SESSION,
        run_id=view.run_id,
        approval_id=view.id,
        call_id=view.call_id,
        batch_id=view.batch_id,
        tool=view.tool,
        summary=view.summary,
        arguments=view.arguments,
        cwd=view.cwd,
        reason=view.reason,
        preview=view.preview,
        expires_at=view.expires_at,
    )


def asks(hub: FakeHub) -> None:
    """The agent asks a question."""
    view = question()
    hub.answers["question.list"] = [view]
    fields = {"question_id": view.id, "call_id": view.call_id, "question": view.question, "options": view.options}
    hub.emit("question.opened", session_id=SESSION, run_id=RUN, expires_at=LATER, **fields)


def decided(hub: FakeHub, state: str, decision: str | None, **change: Any) -> None:
    """The question is closed."""
    hub.answers["approval.list"] = []
    fields: dict[str, Any] = {"approval_id": APPROVAL, "call_id": CALL, "decided_by": "somebody", "message": None}
    hub.emit("approval.decided", session_id=SESSION, run_id=RUN, state=state, decision=decision, **{**fields, **change})


def command(home: Path, *arguments: str) -> list[str]:
    """Return the command line of `hubctl` with a home."""
    return [sys.executable, "-m", "cli.main", "--home", str(home), *arguments]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what steers Turnback, at a plain terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBACK_", "GIT_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", **more}


def hubctl(
    home: Path, *arguments: str, cwd: Path | None = None, input: str = "", **env: str
) -> "subprocess.CompletedProcess[str]":
    """Run `hubctl` as a process."""
    return subprocess.run(
        command(home, *arguments),
        cwd=cwd,
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**env),
        check=False,
    )


def lines(text: str) -> list[dict[str, Any]]:
    """Return NDJSON as values."""
    return [json.loads(line) for line in text.splitlines()]
