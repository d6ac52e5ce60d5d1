"""A run in progress: what its gate, its steps and its driver share, and the clock of its active time."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from hub.agent.tools.base import Tool
from hub.clock import Clock
from hub.daemon.services import Services
from hub.domain.messages import Message
from hub.domain.runs import RunSpec, RunUsage, Spent, StopReason, plus
from hub.domain.values import CheckpointMode
from hub.store.database import Transaction
from hub.store.runs import Hold


class RunOver(Exception):
    """The run must end now: a limit, a missing checkpoint, a workspace that is gone."""

    def __init__(self, stop_reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.stop_reason = stop_reason
        self.text = text


class ActiveTime:
    """Seconds that a run has executed; stands still while it waits. `on_limit` is called once when they are used up."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self.on_limit: Callable[[], None] = lambda: None
        self._clock = clock
        self._spent = 0.0
        self._limit = limit_s
        self._since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        running = self._clock.monotonic() - self._since if self._since is not None else 0.0
        return self._spent + running

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._limit - self.seconds)

    def resume_from(self, seconds: float) -> None:
        """Begin with what an earlier holder has counted."""
        self._spent = seconds

    def run(self) -> None:
        """Let the clock run."""
        if self._since is None:
            self._since = self._clock.monotonic()
            self._alarm = asyncio.get_running_loop().call_later(self.remaining_s, self._used_up)

    def stop(self) -> None:
        """Let the clock stand still."""
        self._spent, self._since = self.seconds, None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _used_up(self) -> None:
        self.on_limit()


Conclusion = Callable[[Transaction], Message]


class Running:
    """One run that this process drives. `wake` is set whenever something it may wait for has changed.

    `steered`: a steer or a notice may wait in the store. `conclusion`: stores the last answer, which is not stored yet.
    `head_id`: the newest message of the run as far as it is stored. `mode`: whether it takes checkpoints.
    `was_away`: taken up again, and has written nothing since others may have written.
    `written_since_capture`: a call that may write has begun since the capture with which the run began or came back.
    """

    def __init__(self, services: Services, hold: Hold, spec: RunSpec, tools: Mapping[str, Tool]) -> None:
        self.services = services
        self.hold = hold
        self.spec = spec
        self.root = Path(spec.workspace)
        self.wake = asyncio.Event()
        self.tools = tools
        self.waiting = False
        self.time = ActiveTime(services.clock, spec.limits.max_wall_s)
        self.usage = RunUsage()
        self.cost: float | None = 0.0
        self.turns = 0
        self.tool_calls = 0
        self.next_message_id = ""
        self.partial = ""
        self.steered = False
        self.conclusion: Conclusion | None = None
        self.transcript: list[Message] = []
        self.mode: CheckpointMode = "off"
        self.may_have_written = False
        self.written_since_capture = False
        self.written_since_step = False
        self.has_checkpoint = False
        self.was_away = False
        self.head_id: str | None = None
        self.run_count = 0

    def may_write(self) -> None:
        """A call that may write begins."""
        self.may_have_written = self.written_since_capture = self.written_since_step = True

    @property
    def run_id(self) -> str:
        return self.hold.run_id

    @property
    def session_id(self) -> str:
        return self.hold.session_id

    @property
    def spent(self) -> Spent:
        return Spent(turns=self.turns, tool_calls=self.tool_calls, active_s=self.time.seconds, cost=self.cost)

    def add_usage(self, input_tokens: int | None, output_tokens: int | None, cached: int | None) -> None:
        """Add an answer's tokens; one that does not say makes the sum unknown."""
        self.usage = RunUsage(
            input_tokens=plus(self.usage.input_tokens, input_tokens),
            output_tokens=plus(self.usage.output_tokens, output_tokens),
            cached_tokens=plus(self.usage.cached_tokens, cached),
        )

    def add_cost(self, cost: float | None) -> None:
        """Add an answer's price; an unknown one makes the sum unknown."""
        self.cost = None if self.cost is None or cost is None else self.cost + cost
