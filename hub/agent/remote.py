"""Models that are asked through the model worker, seen from the hub.

`WorkerProcess` owns the worker: it starts in the background, is started again with a back-off when it dies, rests after
half an hour without a request and starts again on demand. A request in flight when the worker dies raises ModelError of
kind retry. The worker's standard input is its lease of life: when the hub is gone, so is the worker.

Keys are handed over in the environment of the child, so they are fixed for the life of a WorkerProcess.
Not promised: any retry of a request; see `retry.ask`. Nothing here imports litellm.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hub.agent.model import Finish, Model, ModelError, ModelPart, ModelRequest, Notice
from hub.agent.tools.base import ChildWatch
from hub.agent.worker_link import Link
from hub.agent.worker_protocol import KEY_PREFIX, LINE_LIMIT, Ask, Target, encode
from hub.settings import Secret

BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
PATIENCE = 5
"""Deaths in a row after which the worker is only started when a request wants it."""
SETTLED_S = 60.0
"""A worker that has lived this long has not died in a row."""
IDLE_S = 30 * 60.0

PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HF_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"}
)
PASSED_ON_ENDINGS = ("_API_KEY", "_API_BASE", "_BASE_URL")
PASSED_ON_PREFIXES = ("LC_", "AWS_", "AZURE_", "VERTEXAI_")

log = logging.getLogger(__name__)


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model: its name as litellm knows it, where and with which key it is asked, how long (seconds) it is waited
    for, and which one is asked when it has failed for good."""

    name: str
    api_base: str | None = None
    api_key: Secret | None = None
    first_token_s: float = 120.0
    chunk_s: float = 60.0
    total_s: float = 600.0
    fallback: "ModelSettings | None" = None


def worker_environment(environ: Mapping[str, str], keys: Sequence[Secret]) -> dict[str, str]:
    """Return what the worker gets of an environment: what programs need, what providers are reached with, the keys."""
    passed = {name: value for name, value in environ.items() if _is_passed_on(name.upper())}
    return passed | {f"{KEY_PREFIX}{number}": key.reveal() for number, key in enumerate(keys)}


def _is_passed_on(name: str) -> bool:
    if name.startswith("TURNBACK_"):
        return False
    return name in PASSED_ON or name.endswith(PASSED_ON_ENDINGS) or name.startswith(PASSED_ON_PREFIXES)


class LitellmModel:
    """Implements Model through a worker that was made with this model's key, if it has one. Raises KeyError if not."""

    def __init__(self, worker: "WorkerProcess", settings: ModelSettings) -> None:
        self.name = settings.name
        self.fallback: Model | None = LitellmModel(worker, settings.fallback) if settings.fallback else None
        self._worker = worker
        self._target = Target(
            model=settings.name,
            api_base=settings.api_base,
            key_variable=worker.variable_of(settings.api_key) if settings.api_key else None,
            first_token_s=settings.first_token_s,
            chunk_s=settings.chunk_s,
            total_s=settings.total_s,
        )

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the answer's parts. Raises ModelError."""
        return self._worker.ask(self._target, request)


class WorkerProcess:
    """The worker and its supervision. `state` is off, starting, loading, ready, idle, or what is wrong."""

    def __init__(
        self,
        environ: Mapping[str, str],
        keys: Sequence[Secret] = (),
        *,
        cwd: Path,
        watch: ChildWatch | None = None,
        idle_s: float = IDLE_S,
        back_off_s: Sequence[float] = BACK_OFF_S,
    ) -> None:
        self._environ = worker_environment(environ, keys)
        self._variables = {key.reveal(): f"{KEY_PREFIX}{number}" for number, key in enumerate(keys)}
        self._cwd = cwd
        self._watch = watch
        self._idle_s = idle_s
        self._back_off_s = back_off_s
        self._ids = itertools.count(1)
        self._link: Link | None = None
        self._wanted = asyncio.Event()
        self._there = asyncio.Event()
        self._closed = False
        self._trouble = ""
        self._supervisor: asyncio.Task[None] | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._asking = 0

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._link.pid if self._link is not None else None

    @property
    def state(self) -> str:
        if self._closed or self._supervisor is None:
            return "off"
        if self._link is not None:
            return self._link.broken or ("ready" if self._link.ready else "loading")
        return self._trouble or ("starting" if self._wanted.is_set() else "idle")

    def variable_of(self, key: Secret) -> str:
        """Return the variable that holds a key in the worker's environment. Raises KeyError for a key it was not
        made with."""
        return self._variables[key.reveal()]

    def start(self) -> None:
        """Have a worker started in the background, if there is none. Returns at once."""
        if self._closed:
            return
        self._wanted.set()
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="model-worker")
            self._supervisor.add_done_callback(self._unsupervised)

    async def close(self) -> None:
        """End the worker: its input is closed, and if it does not leave it is ended. Requests in flight fail."""
        self._closed = True
        self._cancel_rest()
        if self._link is not None:
            await self._link.end()
        self._there.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def ask(self, target: Target, request: ModelRequest) -> AsyncGenerator[ModelPart]:
        """Yield the parts of one answer. Closing the generator cancels the request. Raises ModelError."""
        order = Ask(next(self._ids), target, request)
        line = encode(order)
        if len(line) >= LINE_LIMIT:
            raise ModelError("overflow", f"The request has {len(line)} bytes; {LINE_LIMIT} are the limit.")
        self._asking += 1
        self._cancel_rest()
        try:
            if self._link is None:
                yield Notice("model worker is starting")
            link = await self._linked(target.first_token_s)
            async with contextlib.aclosing(link.ask(order.id, line)) as parts:
                async for part in parts:
                    yield part
                    if isinstance(part, Finish):
                        return
        finally:
            self._asking -= 1
            self._rest_later()

    async def _linked(self, patience_s: float) -> Link:
        """Return a worker that can be told things. Raises ModelError when there is none in time."""
        self.start()
        try:
            async with asyncio.timeout(patience_s):
                while self._link is None and not self._closed:
                    await self._there.wait()
        except TimeoutError:
            raise ModelError("retry", f"The model worker has not started. {self._trouble}".strip()) from None
        if self._link is None:
            raise ModelError("cancelled", "The hub is stopping.")
        return self._link

    async def _supervise(self) -> None:
        """Keep a worker alive as long as one is wanted."""
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._closed:
            await self._wanted.wait()
            born_at = loop.time()
            told = await self._one_life()
            if told is None:
                deaths, self._trouble = 0, ""
                continue
            deaths = 1 if loop.time() - born_at > SETTLED_S else deaths + 1
            self._trouble = told
            log.warning("the model worker ended", extra={"reason": told, "in_a_row": deaths})
            if deaths >= PATIENCE and not self._asking:
                self._wanted.clear()
            await asyncio.sleep(self._back_off_s[min(deaths, len(self._back_off_s)) - 1])

    async def _one_life(self) -> str | None:
        """Start a worker and stay with it to its end; return how it ended, None when it was told to leave."""
        try:
            link = await Link.start(self._environ, self._cwd, self._watch)
        except OSError as error:
            return f"it cannot be started: {error}"
        self._link, self._trouble = link, ""
        self._there.set()
        self._rest_later()
        try:
            told = await link.live()
            return None if link.leaving else told
        finally:
            self._link = None
            self._there.clear()

    def _unsupervised(self, supervisor: asyncio.Task[None]) -> None:
        """The edge of the supervising task: a defect in it is logged, and the next request starts it again."""
        error = None if supervisor.cancelled() else supervisor.exception()
        if error is not None:
            log.error("the supervision of the model worker failed", exc_info=error)
            self._trouble, self._supervisor = str(error), None

    def _rest_later(self) -> None:
        self._cancel_rest()
        if not self._asking and self._link is not None and not self._closed:
            self._rest_timer = asyncio.get_running_loop().call_later(self._idle_s, self._rest)

    def _cancel_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _rest(self) -> None:
        """Let the worker leave until it is wanted again."""
        link, self._link = self._link, None
        self._there.clear()
        self._wanted.clear()
        if link is not None:
            link.close_input()
