"""The thread of a client for threads, with an event loop that does all of its I/O.

A thread is needed anyway, to renew leases while the caller works. On one loop, calls from any thread can be cancelled (Ctrl-C gives
back what was acquired), and a node can be probed beside a call that waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from . import _fork
from ._engine import Engine, Settings
from ._tasks import bounded
from .errors import Closed

T = TypeVar("T")
_LOG = logging.getLogger("ringfence")
_AT_EXIT = 2.0
_STARTS_WITHIN = 30.0


class Runner:
    """An engine on a thread of its own, from the first call on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.process = _fork.process()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._engine: Engine | None = None
        self._is_stopped = False

    def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the loop, and waits for it. If the caller is interrupted, so is the work."""
        engine = self._started()
        if threading.current_thread() is self._thread:
            raise RuntimeError("the client's own thread cannot wait for itself")
        with self._lock:
            # What is submitted before the client stops is answered.
            if self._is_stopped:
                raise Closed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work(engine), engine.loop)
        try:
            return future.result()
        except CancelledError:
            raise Closed("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls it on the loop, if that still runs in this process. From anywhere, also from the garbage collector."""
        engine = self._engine
        if engine is not None and self.process == _fork.process():
            with suppress(RuntimeError):
                engine.loop.call_soon_threadsafe(function, *arguments)

    def engine(self) -> Engine | None:
        """The engine, if it has begun."""
        return self._engine

    def stop(self, within: float, closes: bool) -> None:
        """Waits for releases in the background, closes the client if it `closes`, and ends the thread."""
        with self._lock:
            engine, thread = self._engine, self._thread
            was_stopped, self._is_stopped = self._is_stopped, self._is_stopped or closes
        if engine is None or thread is None or was_stopped or not thread.is_alive():
            return
        if not closes:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(_settle(engine, within), engine.loop).result(within + 1.0)
            return
        self.call_back_stop(engine, within)
        thread.join()

    def call_back_stop(self, engine: Engine, within: float) -> None:
        """Closes the engine on its loop, which ends then."""
        asyncio.run_coroutine_threadsafe(_close(engine, within), engine.loop)

    def abandon(self) -> None:
        """Ends the thread once all releases are done: nobody has the client any more."""
        # Nobody else can call: no lock, which the thread that the garbage collector interrupted may have.
        if self.process == _fork.process() and self._engine is not None and not self._is_stopped:
            self._is_stopped = True
            with suppress(RuntimeError):
                self.call_back_stop(self._engine, 30.0)

    def _started(self) -> Engine:
        with self._lock:
            if self._is_stopped:
                raise Closed("the client is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="ringfence", daemon=True)
                self._thread.start()
                _RUNNERS.add(self)
            if not self._is_ready.wait(_STARTS_WITHIN) or self._engine is None:
                raise RuntimeError("the client's thread does not run: does this server allow threads?")
            return self._engine

    def _main(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._begin())
            loop.run_forever()
            # Whoever waits for one of these is told.
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
        finally:
            self._is_ready.set()
            loop.close()

    async def _begin(self) -> None:
        self._engine = Engine(self._settings)
        self._is_ready.set()


_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()


async def _close(engine: Engine, within: float) -> None:
    try:
        await engine.close(within)
        # What it has just cancelled and closed ends in the next rounds.
        for _ in range(3):
            await asyncio.sleep(0)
    finally:
        engine.loop.call_soon(engine.loop.stop)


async def _settle(engine: Engine, within: float) -> None:
    try:
        await bounded(engine.cluster.settled(), within)
    except asyncio.TimeoutError:
        _LOG.warning("leases could not be released before the process ended: they end with their ttl")


@atexit.register
def _at_exit() -> None:
    """Finishes releases that go on in the background. Leases that were never released end with their ttl."""
    for runner in list(_RUNNERS):
        if runner.process == _fork.process():
            runner.stop(_AT_EXIT, closes=False)
