"""The thread of a client for threads, with an event loop that does all of its I/O.

A thread is needed anyway, to renew leases while the caller works. On one loop, calls from any thread can be cancelled (Ctrl-C gives
back what was acquired), and a node can be probed beside a call that waits for it.

**A signal handler may call anything, whatever it interrupts.** So no thread ever has a lock that the loop, or another call,
needs: a call is one `call_soon_threadsafe`, its result a `Flag`. The thread is begun by one step, too: callers who begin at once
begin several, and one of them stays.

**At the interpreter's end no call waits.** The thread has been frozen then, for ever. What `atexit` calls comes before that.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import logging
import sys
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from . import _fork
from ._engine import Engine, Settings
from ._hooks import Thread
from ._signal import Flag, Result
from ._tasks import quiet
from ._threads import LOOPS, begin, is_a_loop, written
from .errors import Closed, TimedOut

T = TypeVar("T")
_LOG = logging.getLogger("ringfence")
_AT_EXIT = 2.0
_STARTS_WITHIN = 30.0
# How much later than the call's bound the caller gives up, whatever the loop does.
_LATER = 2.0
_LOOK_INTERVAL = 0.05


class Stop(Protocol):
    """What ends a call, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it is to end."""


class Stopped(Exception):
    """The caller wants no result any more."""


class Runner:
    """An engine on a thread of its own, from the first call on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.process = _fork.process()
        self._is_over = Flag()
        self._engines: dict[str, Engine] = {}
        self._results: set[Result[Any]] = set()
        self._is_stopped = False

    def run(
        self,
        work: Callable[[Engine], Coroutine[Any, Any, T]],
        timeout: float | None = None,
        stop: Stop | None = None,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Runs `work` on the loop, and waits for it. If the caller is interrupted, so is the work, or its result undone.

        `timeout` is that of the work. Raises `Stopped` once `stop` is set.
        """
        if is_a_loop():
            raise RuntimeError("a client's own thread cannot wait")
        call = _Call(work, undo)
        try:
            self.begin(call.begin, call.result)
            bound = None if timeout is None else timeout + _LATER
            self._wait(call.result.done, bound, stop)
            self._results.discard(call.result)
            return call.result.get()
        except BaseException:
            # Twice, as the first may be interrupted. Not in a function of its own: that could be interrupted before its first step.
            try:
                self.call_soon(self._leave, call)
            finally:
                self.call_soon(self._leave, call)
            raise

    def begin(self, start: Callable[[Engine, Result[T]], None], result: Result[T] | None = None) -> Result[T]:
        """Calls it on the loop. Whatever becomes of the loop, there will be a result."""
        engine, result = self._started(), Result() if result is None else result
        # If the loop ends before it begins this, it fails it.
        self._results.add(result)
        try:
            engine.loop.call_soon_threadsafe(_call, start, engine, result)
        except RuntimeError:
            self._results.discard(result)
            raise Closed("the client is closed") from None
        return result

    def wait(self, result: Result[T], timeout: float | None) -> T | None:
        """Waits for a result. On the thread of a client nobody waits: others have leases that it renews."""
        try:
            if is_a_loop():
                return None
            self._wait(result.done, timeout, None)
            return result.get()
        finally:
            self._results.discard(result)

    def _wait(self, done: Flag, timeout: float | None, stop: Stop | None) -> None:
        begun = time.monotonic()
        while True:
            left = None if timeout is None else timeout - (time.monotonic() - begun)
            nap = left if stop is None else min(_LOOK_INTERVAL, _LOOK_INTERVAL if left is None else left)
            if done.wait(nap):
                return
            if stop is not None and stop.is_set():
                raise Stopped
            if timeout is not None and left is not None and left <= 0:
                raise TimedOut(timeout, "timeout")

    def _leave(self, call: _Call[Any]) -> None:
        self._results.discard(call.result)
        call.cancel()

    def call_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls it on the loop, if that still runs in this process. From anywhere, also from the garbage collector."""
        engine = self.engine()
        if engine is not None and self.process == _fork.process():
            with suppress(RuntimeError):
                engine.loop.call_soon_threadsafe(function, *arguments)

    def engine(self) -> Engine | None:
        """The engine, if it has begun."""
        return self._engines.get("engine")

    def close(self, within: float) -> int:
        """Closes the client, and ends the thread. Returns how many leases are left. A repeat waits for the first."""
        # In this order: a thread that begins meanwhile looks in the other one.
        was_stopped, self._is_stopped = self._is_stopped, True
        engine = self.engine()
        if engine is None:
            return 0
        if sys.is_finalizing():
            if not was_stopped:
                _LOG.warning("the client was closed while the program ended: its leases end with their ttl")
            return engine.left()
        with suppress(RuntimeError):
            # Also in a repeat: a signal handler may have interrupted the first close before this step.
            engine.loop.call_soon_threadsafe(_begin_close, engine, within)
        if not is_a_loop():
            self._is_over.wait(within + _LATER)
        return engine.left()

    def close_soon(self, within: float) -> None:
        """Closes the client in the background."""
        self._is_stopped = True
        engine = self.engine()
        if engine is not None:
            self.call_soon(_begin_close, engine, within)

    def begin_settling(self, within: float) -> Flag:
        """Ends whatever waits, and goes on with releases. The returned flag is set once they are done."""
        result: Result[None] = Result()
        engine = self.engine()
        if engine is None or self._is_over.is_set():
            return self._is_over
        try:
            engine.loop.call_soon_threadsafe(_begin_settling, engine, within, result)
        except RuntimeError:
            return self._is_over
        # If the client was dropped, the thread ends by itself, and releases until then.
        return self._is_over if self._is_stopped else result.done

    def abandon(self) -> None:
        """Ends the thread once all releases are done: nobody has the client any more."""
        engine = self.engine()
        if self.process == _fork.process() and engine is not None and not self._is_stopped:
            self._is_stopped = True
            with suppress(RuntimeError):
                engine.loop.call_soon_threadsafe(_begin_close, engine, 30.0)

    def _started(self) -> Engine:
        if sys.is_finalizing():
            raise Closed("the program ends")
        engine = self.engine()
        if engine is None:
            # What was closed beside its first call has an engine all the same, which releases.
            if self._is_stopped:
                raise Closed("the client is closed")
            _RUNNERS.add(weakref.ref(self, _RUNNERS.discard))
            is_ready = Flag()
            if begin(partial(self._main, is_ready), "ringfence"):
                is_ready.wait(_STARTS_WITHIN)
            engine = self.engine()
        if engine is None:
            raise RuntimeError("the client's thread does not run: does this server allow threads?")
        return engine

    def _main(self, is_ready: Flag) -> None:
        stays, hooks = False, Thread()
        try:
            loop = asyncio.new_event_loop()
            try:
                stays = loop.run_until_complete(self._begin(is_ready, hooks))
                if stays:
                    self._run(loop)
            finally:
                loop.close()
        finally:
            is_ready.set()
            LOOPS.discard(_thread.get_ident())
            hooks.end()
            if stays:
                self._end()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        # Whoever waits for one of these is told.
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))

    def _end(self) -> None:
        """Fails the calls that the loop has not begun. From now on it takes none."""
        for result in list(self._results):
            if not result.done.is_set():
                result.fail(Closed("the client was closed"))
        self._is_over.set()

    async def _begin(self, is_ready: Flag, hooks: Thread) -> bool:
        """Returns whether this is the thread that stays."""
        engine = Engine(self._settings, hooks)
        if self._engines.setdefault("engine", engine) is not engine:
            await engine.close(0.0)
            return False
        LOOPS.add(_thread.get_ident())
        if self._is_stopped:
            _begin_close(engine, 0.0)
        is_ready.set()
        return True


class _Call(Generic[T]):
    """A call on the loop, whose result goes to another thread."""

    def __init__(
        self, work: Callable[[Engine], Coroutine[Any, Any, T]], undo: Callable[[T], None] | None
    ) -> None:
        self.result: Result[T] = Result()
        self._work, self._undo = work, undo
        self._task: asyncio.Task[T] | None = None
        self._is_left = False

    def begin(self, engine: Engine, result: Result[T]) -> None:
        """Begins it. On the loop."""
        self._task = quiet(engine.loop.create_task(self._work(engine)))
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """To be called on the loop if nobody waits for the call any more, or has its result. A repeat does nothing."""
        if self._is_left:
            return
        self._is_left = True
        if self._task is not None:
            self._task.cancel()
        self._undo_result()

    def _undo_result(self) -> None:
        value = self.result.peek()
        if value is not None and self._undo is not None:
            self._undo(value)

    def _end(self, task: asyncio.Task[T]) -> None:
        error = Closed("the client was closed") if task.cancelled() else task.exception()
        # It is the only one that has it: the task may live as long as a traceback.
        self._task = None
        if error is None:
            self.result.succeed(task.result())
            if self._is_left:
                self._undo_result()
        else:
            self.result.fail(error)


# Other threads may add to it while it is read at the end. A plain set is safe: each step on it is atomic.
_RUNNERS: set[weakref.ref[Runner]] = set()


def _call(start: Callable[[Engine, Result[T]], None], engine: Engine, result: Result[T]) -> None:
    """Whatever becomes of it, there is a result."""
    try:
        start(engine, result)
    except BaseException as error:  # noqa: BLE001 whoever waits for it gets it
        result.fail(error)


def _begin_settling(engine: Engine, within: float, result: Result[None]) -> None:
    settling = quiet(engine.loop.create_task(engine.settle(within)))
    settling.add_done_callback(lambda _: result.succeed(None))


def _begin_close(engine: Engine, within: float) -> None:
    if engine.is_closed:
        return
    closing = engine.begin_close(within)

    async def stop() -> None:
        try:
            await asyncio.wait({closing})
            # What it has just cancelled and closed ends in the next rounds.
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            engine.loop.call_soon(engine.loop.stop)

    quiet(engine.loop.create_task(stop()))


@atexit.register
def _at_exit() -> None:
    """Ends what waits, and finishes releases. Leases that were never released end with their ttl."""
    until = time.monotonic() + _AT_EXIT + _LATER
    settling = []
    for found in list(_RUNNERS):
        runner = found()
        if runner is not None and runner.process == _fork.process():
            settling.append(runner.begin_settling(_AT_EXIT))
    for is_settled in settling:
        is_settled.wait(until - time.monotonic())
    written(_AT_EXIT)
