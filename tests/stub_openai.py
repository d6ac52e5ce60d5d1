"""An OpenAI-compatible server on loopback that answers as told, right or wrong, and remembers what it was asked.

`async with StubServer([text("hello")]) as stub:` serves in the running loop; `stub.api_base` is for a model's settings.
Each request takes the next reply and the last one serves for ever; with `by_turn`, a request takes the reply whose
number is the count of assistant messages since the last user message, so that a repeated request is answered alike.

As a program: `python -m tests.stub_openai --port N --scenario FILE` prints its address and serves until it is ended.
The file is YAML: `by_turn: bool`, `replies: [...]`, each with any of
`text`, `pieces` (into how many the text is cut), `reasoning`, `tool_calls: [{name, arguments}]`, `finish`, `usage`,
`delay_s` (before the headers), `gap_s` (between pieces), `status` with `body` and `headers` (an error), or raw `steps`.
"""

import argparse
import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Self

import msgspec
import yaml

Json = dict[str, Any]
ENVELOPE: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE: Json = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """One event of the stream."""

    data: Json


class Raw(msgspec.Struct, frozen=True, tag="raw"):
    """These characters, as they are."""

    text: str


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """A pause."""

    seconds: float


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Nothing more, until the client has gone."""


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """The connection is reset, without the end of the body."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """The connection is closed, without the end of the body."""


Step = Chunk | Raw | Sleep | Hold | Reset | Cut


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: a stream of steps, or a whole body with a status. `before` happens ahead of the headers."""

    steps: tuple[Step, ...] = ()
    status: int = 200
    headers: dict[str, str] = {}
    body: str | None = None
    before: tuple[Step, ...] = ()


class Exchange:
    """One request, and whether its client has gone before the reply was over."""

    def __init__(self, path: str, headers: Mapping[str, str], body: Json, raw: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.raw = raw
        self.abandoned = asyncio.Event()
        self.over = asyncio.Event()


class StubServer:
    """The server. `exchanges` are the requests so far, in order; `asked(n)` waits until there are n."""

    def __init__(self, replies: Sequence[Reply], *, by_turn: bool = False) -> None:
        self.exchanges: list[Exchange] = []
        self.port = 0
        self._replies = replies
        self._by_turn = by_turn
        self._arrival = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def asked(self, count: int) -> Exchange:
        """Wait for the request number `count` (from 1) and return it."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.exchanges) >= count)
        return self.exchanges[count - 1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async for exchange in _requests(reader):
                await self._serve(exchange, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or `stop` ends this connection
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._arrival:
            number = len(self.exchanges)
            self.exchanges.append(exchange)
            self._arrival.notify_all()
        wanted = turn_of(exchange.body) if self._by_turn else number
        reply = self._replies[min(wanted, len(self._replies) - 1)]
        playing = asyncio.create_task(_play(reply, writer))
        hangup = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait([playing, hangup], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                exchange.abandoned.set()
        finally:
            playing.cancel()
            hangup.cancel()
            await asyncio.gather(playing, hangup, return_exceptions=True)
            exchange.over.set()
        raise ConnectionResetError  # one exchange for each connection keeps the accounts simple


def turn_of(body: Json) -> int:
    """Return how many assistant messages follow the last user message of a request."""
    roles = [message["role"] for message in body.get("messages", [])]
    after = roles[len(roles) - roles[::-1].index("user") :] if "user" in roles else roles
    return after.count("assistant")


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[Exchange]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        yield Exchange(head[0].split(" ")[1], headers, json.loads(raw or b"{}"), raw)


async def _play(reply: Reply, writer: asyncio.StreamWriter) -> None:
    for step in reply.before:
        await _step(step, writer, chunked=False)
    body = reply.body
    headers = {"content-type": "text/event-stream" if body is None else "application/json", "connection": "close"}
    headers |= {"transfer-encoding": "chunked"} if body is None else {"content-length": str(len(body.encode()))}
    lines = [
        f"HTTP/1.1 {reply.status} Scripted",
        *(f"{name}: {value}" for name, value in (headers | reply.headers).items()),
    ]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    if body is not None:
        writer.write(body.encode())
    for step in reply.steps:
        await _step(step, writer, chunked=True)
    if body is None:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _step(step: Step, writer: asyncio.StreamWriter, *, chunked: bool) -> None:
    match step:
        case Chunk(data):
            await _write(f"data: {json.dumps(data)}\n\n", writer, chunked=chunked)
        case Raw(text):
            await _write(text, writer, chunked=chunked)
        case Sleep(seconds):
            await asyncio.sleep(seconds)
        case Hold():
            await asyncio.Event().wait()
        case Cut() | Reset():
            if isinstance(step, Reset):
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.close() if isinstance(step, Cut) else writer.transport.abort()
            raise ConnectionResetError


async def _write(text: str, writer: asyncio.StreamWriter, *, chunked: bool) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
    await writer.drain()


DONE = Raw("data: [DONE]\n\n")


def delta(finish: str | None = None, **fields: Any) -> Chunk:
    """Return a chunk with one choice: its delta's fields, and why it ends."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return Chunk(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


def usage_chunk(usage: Mapping[str, Any] = USAGE) -> Chunk:
    """Return the chunk without choices that tells the usage."""
    return Chunk({**ENVELOPE, "choices": [], "usage": dict(usage)})


def call(arguments: object, name: str | None = None, id: str | None = None, index: int | None = None) -> Chunk:
    """Return a chunk with one piece of a tool call; what is None is left out."""
    function = {"arguments": arguments} | ({"name": name} if name is not None else {})
    piece: Json = {"function": function, "type": "function"}
    piece |= {"id": id} if id is not None else {}
    piece |= {"index": index} if index is not None else {}
    return delta(tool_calls=[piece])


def stream(*steps: Step, finish: str | None = "stop", usage: Mapping[str, Any] | None = USAGE) -> Reply:
    """Return a stream that ends as it should: after the steps a finish reason, the usage, and the end mark."""
    end = [delta(finish)] if finish else []
    told = [usage_chunk(usage)] if usage is not None else []
    return Reply(steps=(delta(role="assistant", content=""), *steps, *end, *told, DONE))


def text(words: str, *, pieces: int = 1, gap_s: float = 0.0, **end: Any) -> Reply:
    """Return an answer of words, cut into pieces."""
    return stream(*_pieces(words, pieces, gap_s), **end)


def calls(*wanted: tuple[str, Mapping[str, Any]], words: str = "", **end: Any) -> Reply:
    """Return an answer that calls tools, in the form of OpenAI: the name first, then the arguments in two pieces."""
    steps: list[Step] = list(_pieces(words, 1, 0.0))
    for index, (name, arguments) in enumerate(wanted):
        raw = json.dumps(arguments)
        half = len(raw) // 2
        steps += [call("", name, f"c{index}", index), call(raw[:half], index=index), call(raw[half:], index=index)]
    return stream(*steps, **({"finish": "tool_calls"} | end))


def error(status: int, body: object, **headers: str) -> Reply:
    """Return a refusal; a body that is not text is sent as JSON. `retry_after` becomes the header Retry-After."""
    whole = body if isinstance(body, str) else json.dumps(body)
    return Reply(status=status, body=whole, headers={name.replace("_", "-"): value for name, value in headers.items()})


def refusal(message: str, code: str | None = None, type: str = "invalid_request_error") -> Json:
    """Return an error body as OpenAI writes them."""
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def _pieces(words: str, count: int, gap_s: float) -> Iterable[Step]:
    size = max(1, -(-len(words) // count))
    for at in range(0, len(words), size):
        if at and gap_s:
            yield Sleep(gap_s)
        yield delta(content=words[at : at + size])


def reply_of(entry: Mapping[str, Any]) -> Reply:
    """Return the reply that an entry of a scenario file describes."""
    before = (Sleep(entry["delay_s"]),) if entry.get("delay_s") else ()
    if "status" in entry:
        refused = error(entry["status"], entry.get("body", refusal("scripted")), **entry.get("headers", {}))
        return msgspec.structs.replace(refused, before=before)
    if "steps" in entry:
        return Reply(steps=msgspec.convert(entry["steps"], tuple[Step, ...]), before=before)
    wanted = [(item["name"], item.get("arguments", {})) for item in entry.get("tool_calls", ())]
    spoken = _pieces(entry.get("text", ""), entry.get("pieces", 1), entry.get("gap_s", 0.0))
    thought: list[Step] = [delta(reasoning_content=entry["reasoning"])] if "reasoning" in entry else []
    called = calls(*wanted).steps[1:-3] if wanted else ()
    finish = entry.get("finish", "tool_calls" if wanted else "stop")
    return msgspec.structs.replace(
        stream(*thought, *spoken, *called, finish=finish, usage=entry.get("usage", USAGE)), before=before
    )


async def _main() -> None:
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server that answers as told.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scenario", type=Path, required=True)
    options = parser.parse_args()
    scenario = yaml.safe_load(options.scenario.read_text(encoding="utf-8"))
    server = StubServer([reply_of(entry) for entry in scenario["replies"]], by_turn=scenario.get("by_turn", False))
    await server.start(options.port)
    print(server.api_base, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
