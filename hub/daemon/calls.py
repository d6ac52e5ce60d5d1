"""How a call becomes an answer: one table of handlers, and idempotency for everything that changes something.

Four kinds of handler. `transactional` ones are functions of a transaction: effect, events and stored answer commit
together. `prepared` ones look something up first (a directory, say), then are the same. `sealed` ones do I/O and
store their answer in the transaction of their effect; `asynchronous` ones read, or have no effect to repeat. While a
call works, a repeat of the same key waits for the same answer.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hub.domain.values import Scope
from hub.errors import InternalError, TurnbackError
from hub.protocol.methods import METHODS, Method
from hub.protocol.params import Mutation, Params
from hub.store import registry
from hub.store.database import Database, Transaction

HANDLED_BY_CONNECTION = frozenset({"hub.hello", "events.subscribe", "events.unsubscribe"})


class Caller(msgspec.Struct, frozen=True):
    """On whose behalf a call is made. Taken from the connection, never from the call's own words."""

    actor: str
    scopes: tuple[Scope, ...]

    @property
    def may_approve(self) -> bool:
        return "approve" in self.scopes


TransactionalHandler = Callable[[Transaction, Any, Caller], Any]
PreparedHandler = Callable[[Transaction, Any, Caller, Any], Any]
AsyncHandler = Callable[[Any, Caller], Awaitable[Any]]
Seal = Callable[[Transaction, Any], None]
"""Stores a call's answer in the transaction of its effect, so that neither is ever there without the other."""
Over = Callable[[Any], None]
"""Gives back what was prepared, when the transaction is over, whatever it came to. Quick, and does not raise."""
SealedHandler = Callable[[Any, Caller, Seal], Awaitable[Any]]


class Handlers:
    """The table of handlers, by method name. `complete` refuses a hole or a stranger."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prepared: dict[str, tuple[AsyncHandler, PreparedHandler, Over]] = {}
        self._async: dict[str, AsyncHandler] = {}
        self._sealed: dict[str, SealedHandler] = {}
        self._in_flight: dict[tuple[str, str], asyncio.Future[bytes]] = {}

    def transactional(self, name: str, handler: TransactionalHandler) -> None:
        """Serve a mutating method by a function of a transaction."""
        self.prepared(name, _nothing, lambda tx, params, caller, _: handler(tx, params, caller))

    def prepared(
        self, name: str, prepare: AsyncHandler, handler: PreparedHandler, over: Over = lambda found: None
    ) -> None:
        """Serve a mutating method by a function of a transaction and of what a coroutine has looked up or taken."""
        self._claim(name, self._prepared, (prepare, handler, over))

    def asynchronous(self, name: str, handler: AsyncHandler) -> None:
        """Serve a method by a coroutine."""
        self._claim(name, self._async, handler)

    def sealed(self, name: str, handler: SealedHandler) -> None:
        """Serve a mutating method by a coroutine that seals its answer in the transaction of its effect."""
        self._claim(name, self._sealed, handler)

    def _claim(self, name: str, table: dict[str, Any], handler: Any) -> None:
        if name not in METHODS or name in {*self._prepared, *self._async, *self._sealed}:
            raise InternalError(f"Method {name} is unknown, or has a handler already.")
        table[name] = handler

    def complete(self) -> None:
        """Raise InternalError unless every method of the protocol has its handler."""
        missing = set(METHODS) - set(self._prepared) - set(self._async) - set(self._sealed) - HANDLED_BY_CONNECTION
        if missing:
            raise InternalError(f"Methods without a handler: {', '.join(sorted(missing))}.")

    async def answer(self, method: Method, params: Params, caller: Caller) -> msgspec.Raw:
        """Return the encoded result of a call. Raises TurnbackError."""
        if not isinstance(params, Mutation):
            return msgspec.Raw(msgspec.json.encode(await self._async[method.name](params, caller)))
        return msgspec.Raw(await self._once(method, params, caller))

    async def _once(self, method: Method, params: Mutation, caller: Caller) -> bytes:
        place = (caller.actor, params.idempotency_key)
        while place in self._in_flight:
            await asyncio.wait([self._in_flight[place]])
        digest = hashlib.sha256(method.name.encode() + msgspec.json.encode(params, order="deterministic")).hexdigest()
        if method.name in self._prepared:
            return await self._by_prepared(method, params, caller, digest)
        return await self._in_steps(method, params, caller, digest)

    async def _by_prepared(self, method: Method, params: Mutation, caller: Caller, digest: str) -> bytes:
        """Prepare and carry out; a repeat is answered even if what it named can no longer be prepared."""
        prepare, handler, over = self._prepared[method.name]
        try:
            found = await prepare(params, caller)
        except TurnbackError:
            stored = await self._stored(method, params, caller, digest)
            if stored is None:
                raise
            return stored

        def work(tx: Transaction) -> bytes:
            return _in_transaction(tx, method, params, caller, digest, lambda: handler(tx, params, caller, found))

        done = self._database.hand_in(work)
        done.add_done_callback(lambda _: over(found))  # not before: who stops waiting does not stop the transaction
        return await asyncio.shield(done)

    async def _in_steps(self, method: Method, params: Mutation, caller: Caller, digest: str) -> bytes:
        place = (caller.actor, params.idempotency_key)
        working = self._in_flight[place] = asyncio.get_running_loop().create_future()
        try:
            stored = await self._stored(method, params, caller, digest)
            if stored is not None:
                return stored
            if method.name in self._sealed:
                return await self._by_sealed(method, params, caller, digest)
            answer = msgspec.json.encode(await self._async[method.name](params, caller))
            await self._database.write(lambda tx: registry.remember_answer(tx, *place, method.name, digest, answer))
            return answer
        finally:
            working.set_result(b"")
            del self._in_flight[place]

    async def _stored(self, method: Method, params: Mutation, caller: Caller, digest: str) -> bytes | None:
        key = params.idempotency_key
        return await self._database.read(lambda conn: registry.answered(conn, caller.actor, key, method.name, digest))

    async def _by_sealed(self, method: Method, params: Mutation, caller: Caller, digest: str) -> bytes:
        place = (caller.actor, params.idempotency_key)

        def seal(tx: Transaction, answer: Any) -> None:
            registry.remember_answer(tx, *place, method.name, digest, msgspec.json.encode(answer))

        return msgspec.json.encode(await self._sealed[method.name](params, caller, seal))


def _in_transaction(
    tx: Transaction, method: Method, params: Mutation, caller: Caller, digest: str, work: Callable[[], Any]
) -> bytes:
    """Return the stored answer to this key; else do the work and store its answer with it."""
    stored = registry.answered(tx.conn, caller.actor, params.idempotency_key, method.name, digest)
    if stored is not None:
        return stored
    answer = msgspec.json.encode(work())
    registry.remember_answer(tx, caller.actor, params.idempotency_key, method.name, digest, answer)
    return answer


async def _nothing(params: Any, caller: Caller) -> None:
    """There is nothing to look up."""
