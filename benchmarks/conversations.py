"""One session seen by a subscribed client, and a model worker that is driven without any hub.

Both hold a growing transcript and send the worker the same requests: what differs between them is the hub.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.processes import KEY, Hub, environment
from hub.agent.model import Finish, ModelRequest, TextDelta
from hub.agent.remote import LitellmModel, ModelSettings, WorkerProcess
from hub.agent.system import system_prompt
from hub.agent.tools.registry import tools_for
from hub.client import HubClient
from hub.domain.messages import Message, TextPart, user_message
from hub.protocol.events import RUN_ENDS, Event, Live
from hub.settings import Secret
from hub.subscription import Subscription

PROMPT = "Say it once more."
RUN_S = 60.0
POLL_S = 0.01


class Conversation:
    """A session and its events. `notices` are what the hub said about waiting for the model."""

    def __init__(self, client: HubClient, session_id: str, model: str, stream: Subscription) -> None:
        self.notices: list[str] = []
        self._client = client
        self._session_id = session_id
        self._options = {"model": model}
        self._stream = stream

    async def run(self) -> float:
        """Submit a prompt; return the seconds until its run was seen to complete. Raises RuntimeError when it did
        not complete, TimeoutError."""
        began = time.perf_counter()
        async with asyncio.timeout(RUN_S):
            await self._client.call("prompt.submit", session_id=self._session_id, text=PROMPT, run=self._options)
            end = await self._end()
        took_s = time.perf_counter() - began
        if end.type != "run.completed":
            raise RuntimeError(f"{end.type}: {bytes(end.data).decode()}")
        return took_s

    async def _end(self) -> Event:
        async for item in self._stream:
            if isinstance(item, Live) and item.type == "model.notice":
                self.notices.append(msgspec.json.decode(item.data)["text"])
            if isinstance(item, Event) and item.type in RUN_ENDS:
                return item
        raise RuntimeError("the events ended before the run")


@asynccontextmanager
async def opened(hub: Hub, workspace: Path, model: str) -> AsyncIterator[Conversation]:
    """Hold a new session of a hub, subscribed with streamed text on the connection that submits."""
    async with await hub.client() as client:
        session = await client.call("session.create", workspace=str(workspace))
        async with client.subscribe(session_id=session.id, live=True) as stream:
            yield Conversation(client, session.id, model, stream)


class DirectModel:
    """A worker process of its own, asked as the hub asks: same system prompt, tools, settings and transcript."""

    def __init__(self, folder: Path, workspace: Path, name: str, api_base: str) -> None:
        key = Secret(KEY)
        self._worker = WorkerProcess(environment(), [key], cwd=folder)
        self._model = LitellmModel(self._worker, ModelSettings(name=name, api_base=api_base, api_key=key))
        self._system = system_prompt(workspace, "act")
        self._tools = [tool.spec for tool in tools_for("default", "act").values()]
        self._transcript: list[Message] = []

    async def first(self) -> tuple[float, float]:
        """Start the worker and ask it once; return the seconds from the start to ready, and to the answer's end."""
        began = time.perf_counter()
        self._worker.start()
        async with asyncio.timeout(RUN_S):
            while self._worker.state != "ready":  # noqa: ASYNC110  # its state is told by no event
                await asyncio.sleep(POLL_S)
        ready_s = time.perf_counter() - began
        await self.ask()
        return ready_s, time.perf_counter() - began

    async def ask(self) -> float:
        """Ask once, keep the answer in the transcript, and return the seconds it took. Raises ModelError."""
        began = time.perf_counter()
        self._transcript.append(user_message(PROMPT))
        request = ModelRequest(self._system, tuple(self._transcript), self._tools, 0)
        words: list[str] = []
        async for part in self._model.stream(request):
            if isinstance(part, TextDelta):
                words.append(part.text)
            if isinstance(part, Finish):
                break
        took_s = time.perf_counter() - began
        self._transcript.append(Message("assistant", (TextPart("".join(words)),)))
        return took_s

    async def close(self) -> None:
        """End the worker."""
        await self._worker.close()
