"""A cluster for tests, without the program: one node in memory, which the real client talks to over loopback.

    from ringfence.testing import FakeCluster

    with FakeCluster() as cluster, cluster.client() as client:
        with client.lock("accounts/42") as lease:
            cluster.revoke("accounts/42")
            assert lease.lost_reason == "revoked"

It grants by the rules of a real one, and what a program that only knows `cluster.url` does there is real, too. It loses everything
when it ends, and has one node, no TLS and no access rules. With pytest, the fixtures `ringfence` and `ringfence_cluster` are there
once this package is installed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from . import _clock, _fork, _sync, _wire, aio
from ._engine import Engine
from ._fake_node import Listener, Node
from ._fake_table import Lease
from ._held import Held
from ._lifetime import MS
from .errors import Blocker, Error

__all__ = ["FakeCluster"]

T = TypeVar("T")
_LEARNS_WITHIN = 5.0


class FakeCluster:
    """A node in memory, on a thread of its own. Its methods may be called from any thread, and from tests with asyncio."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._ahead = 0
        self._clients: weakref.WeakSet[_sync.Client | aio.Client] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ringfence-fake", daemon=True)
        self._thread.start()
        try:
            self._node, self._listener = self._call(self._begin, host, port)
            self._do(self._listener.accept())
        except BaseException:
            self._stop()
            raise
        self.url = f"http://{host}:{self._listener.address[1]}"
        """Where it is. Any client of any language can use it."""

    def client(self, **options: Any) -> _sync.Client:
        """A client for threads, whose clock goes with `advance`. Whoever makes it closes it."""
        client = _sync.Client(self.url, clock=self.clock, **options)
        self._clients.add(client)
        return client

    def aio(self, **options: Any) -> aio.Client:
        """A client for asyncio, whose clock goes with `advance`. Whoever makes it closes it."""
        client = aio.Client(self.url, clock=self.clock, **options)
        self._clients.add(client)
        return client

    def clock(self) -> _clock.Moment:
        """The time of this cluster."""
        return _clock.now().after(self._ahead)

    def advance(self, seconds: float) -> None:
        """Moves the time, as if all programs had been paused for so long: what was not renewed in time has ended.

        A client for threads has renewed what is due when this returns. One for asyncio does that once its loop turns: between two
        moves, `await lease.renew()`.
        """
        # A client must not count for longer than its cluster.
        self._ahead += int((_wire.bound("seconds", seconds) or 0.0) * 1e9)
        self._call(self._node.look)
        for client in list(self._clients):
            _on_its_loop(client, lambda engine: engine.keeper.wake())
            if isinstance(client, _sync.Client) and self._listener.is_open:
                _renew(client, self._is_due)

    def revoke(self, key: str) -> None:
        """Ends the leases that hold a key, as an operator does. The clients of this cluster learn of it: one for threads before this
        returns, and one for asyncio once its loop turns, as in `await lease.wait_lost()`.
        """
        self._end(key, "revoked")

    def expire(self, key: str) -> None:
        """Ends the leases that hold a key, as if nothing had renewed them in time. The clients learn of it as with `revoke`."""
        self._end(key, "expired")

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile, nobody reaches the cluster: calls fail as `Unavailable` or `Unknown` after 5 s, and leases run out."""
        self._do(self._listener.refuse())
        try:
            yield
        finally:
            self._do(self._listener.accept())

    def holders(self, key: str) -> list[Blocker]:
        """Who holds a key."""
        return [
            Blocker(
                key=key,
                token=one["token"],
                holder=one["holder"],
                shared=one["mode"] == "shared",
                limit=one["limit"],
                expires_in=one["expires_in_ms"] / 1_000,
            )
            for one in self._view(key)["holders"]
        ]

    def waiters(self, key: str) -> int:
        """How many wait for a key."""
        return len(self._view(key)["waiters"])

    def close(self) -> None:
        """Ends it."""
        if self._thread.is_alive():
            self._do(self._listener.close())
            self._stop()

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _view(self, key: str) -> dict[str, Any]:
        def view() -> dict[str, Any]:
            self._node.look()
            return self._node.table.view(key)

        return self._call(view)

    def _end(self, key: str, reason: str) -> None:
        def end() -> list[Lease]:
            holders = self._node.table.holders(key)
            for lease in holders:
                self._node.table.end(lease, reason)
            self._node.look()
            return holders

        tokens = {lease.number for lease in self._call(end)}
        if not tokens:
            raise LookupError(f"nobody holds {key!r}")
        # They would learn of it by their next renewal, after a third of the ttl.
        for client in list(self._clients):
            _renew(client, lambda held: held.token in tokens)

    def _is_due(self, held: Held) -> bool:
        return held.read().due_in(self.clock()) == 0

    def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Calls it on the node's loop."""

        async def call() -> T:
            return work(*arguments)

        return self._do(call())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _begin(self, host: str, port: int) -> tuple[Node, Listener]:
        node = Node(lambda: self.clock().boot // MS)
        return node, Listener(node, host, port)

    def _run(self) -> None:
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _renew(client: _sync.Client | aio.Client, wanted: Callable[[Held], bool]) -> None:
    """Has a client ask for these leases now. A client for threads has learned of them when this returns."""
    if isinstance(client, _sync.Client):
        runner = client._runners.get(_fork.process())
        if runner is not None and runner.engine() is not None:
            with suppress(Error):
                runner.run(lambda engine: _renew_on_loop(engine, wanted), _LEARNS_WITHIN)
    else:
        _on_its_loop(client, lambda engine: engine.cluster.spawn(_renew_on_loop(engine, wanted)))


def _on_its_loop(client: _sync.Client | aio.Client, work: Callable[[Engine], Any]) -> None:
    if isinstance(client, _sync.Client):
        runner = client._runners.get(_fork.process())
        engine = runner.engine() if runner is not None else None
    else:
        engine = client._engine
    if engine is not None:
        with suppress(RuntimeError):
            engine.loop.call_soon_threadsafe(work, engine)


async def _renew_on_loop(engine: Engine, wanted: Callable[[Held], bool]) -> None:
    asked = [held for held in engine.keeper.leases() if wanted(held)]
    await asyncio.gather(
        *(engine.renew(held, None, _LEARNS_WITHIN) for held in asked), return_exceptions=True
    )
