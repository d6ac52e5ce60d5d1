"""Whether runs take checkpoints: what a workspace was registered with, else what is configured.

Remembered, so that a run whose checkpoints are off costs no look at the store; forgotten when a workspace changes.
"""

from hub.daemon.bus import Bus
from hub.domain.runs import RunSpec
from hub.domain.values import CheckpointMode
from hub.protocol.events import Event
from hub.store import registry
from hub.store.database import Connection

KNOWN = 10_000
"""Workspaces whose mode is remembered."""
OFF = "checkpoints are off"


class Modes:
    """The mode of each workspace."""

    def __init__(self, bus: Bus, configured: CheckpointMode) -> None:
        self._configured = configured
        self._known: dict[str, CheckpointMode | None] = {}
        bus.listen(self._on_event)

    def of_run(self, conn: Connection, spec: RunSpec) -> CheckpointMode:
        """Return a run's mode; one that asks nobody does not begin without a way back."""
        known = self._known
        if spec.workspace not in known:
            known[spec.workspace] = registry.checkpoint_mode(conn, spec.workspace)
        mode = known[spec.workspace] or self._configured
        return "required" if mode == "best_effort" and spec.preset == "yolo" else mode

    def _on_event(self, event: Event) -> None:
        """Begin a new memory: a read that is under way writes into the old one."""
        if event.type.startswith("workspace.") or len(self._known) > KNOWN:
            self._known = {}
