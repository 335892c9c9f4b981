"""The client for threads."""

from __future__ import annotations

import _thread
import asyncio
import functools
import logging
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from . import _clock, _fork, _wire
from ._blocks import Blocks, Place, caller
from ._engine import Engine, Settings
from ._held import Held, guarded
from ._hooks import Hooks
from ._lease import DEFAULT_TTL, BaseLease, OnError, Options, Outcome, TermOptions, report_leak
from ._runner import Runner, Stop, Stopped
from ._signal import Result
from ._threads import begin
from .errors import Blocker, Closed, Error, LossReason, Lost, Unavailable, Unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
P = ParamSpec("P")
_LOG = logging.getLogger("ringfence")
_CLOSE_WITHIN = 5.0


class Client:
    """A client of the cluster whose nodes are at `urls` (`https://host:port`; some of them are enough). It sends nothing by itself.

    `credential` shows who the client is, `ca` is a file with the authorities of the nodes' certificates (by default those that
    this system trusts), `cert` and `key` are files with the client's certificate and key. All of them are for https URLs.
    `hooks` tell what becomes of leases, on a thread of their own.

    Threads may share a client. It has a thread that renews its leases: so a caller that hangs keeps its lease, unless `max_hold`
    limits that. After a fork, the child's first call makes connections and a thread of its own; leases stay with the parent.
    """

    def __init__(
        self,
        urls: str | list[str] | tuple[str, ...],
        *,
        credential: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        clock: _clock.Clock = _clock.now,
        hooks: Hooks | None = None,
    ) -> None:
        self._settings = Settings.check(urls, credential, ca, cert, key, clock, hooks)
        # Those of parents are never touched again.
        self._runners: dict[tuple[int, int], Runner] = {}
        weakref.finalize(self, _abandon, self._runners).atexit = False

    def lock(
        self,
        keys: _wire.Keys,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        shared: bool = False,
        limit: int | None = None,
        holder: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        hold_at_least: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Lease], Any] | None = None,
    ) -> Lock:
        """A lock on one or several keys, granted together. It can be used again and again, also by several threads at once.

        Times are in seconds. `ttl`: how long others wait if this process vanishes. `wait`: how long to wait in the queue (by default
        for as long as it takes). `shared`, `limit`: share the keys, with at most so many holders. `holder`, `metadata`: public
        labels. `max_hold`: after this time the lease is lost, even while it is renewed. `hold_at_least`: the lease outlives the
        block until this time has passed since the grant. `renew=False`: do not renew by itself. `on_lost` is called, on a thread of
        its own, if the lease is lost before it is released.
        """
        options = Options(
            keys,
            ttl=ttl,
            wait=wait,
            shared=shared,
            limit=limit,
            holder=holder,
            metadata=metadata,
            max_hold=max_hold,
            hold_at_least=hold_at_least,
            renew=renew,
            on_lost=on_lost,
        )
        return Lock(self, options)

    def adopt(self, lease_id: str, *, timeout: float | None = None) -> Lease:
        """Takes over a lease by its id, perhaps from another process: renews it once, and from then on.

        Nobody else may renew or release it. Raises `Lost` if it has ended.
        """
        checked, bound = _wire.lease_id(lease_id), _wire.bound("timeout", timeout)
        runner = self._runner()

        async def work(engine: Engine) -> Lease:
            return Lease(self, runner, engine, await engine.adopt(checked, bound), None)

        return runner.run(work, bound, undo=Lease._give_back)

    def holders(self, key: str, *, timeout: float | None = None) -> list[Blocker]:
        """Who holds the key now, as the cluster says: none if it is free. It may be another by the time that you look."""
        checked, bound = _wire.check_key(key, "key"), _wire.bound("timeout", timeout)
        return self._runner().run(lambda engine: engine.holders(checked, bound), bound)

    @overload
    def lead(
        self,
        key: str,
        work: Callable[[Lease], T],
        *,
        on_error: OnError | None = ...,
        stop: None = ...,
        **term: Unpack[TermOptions],
    ) -> T: ...

    @overload
    def lead(
        self,
        key: str,
        work: Callable[[Lease], T],
        *,
        on_error: OnError | None = ...,
        stop: Stop,
        **term: Unpack[TermOptions],
    ) -> T | None: ...

    def lead(
        self,
        key: str,
        work: Callable[[Lease], T],
        *,
        on_error: OnError | None = None,
        stop: Stop | None = None,
        **term: Unpack[TermOptions],
    ) -> T | None:
        """Runs `work` as the leader, and returns its result. `ttl`, `holder`, `metadata` and `max_hold` are those of its leases.

        `work` finds out that it leads no longer by `lease.check()`, whose `Lost` it lets through. Once it has ended, it stands for
        election again. What `work` raises after the loss, and a guard's `Stale` at any time, goes to `on_error`, or to the log. Any
        other error of `work` ends it. The lease is released only after `work` has ended.

        `stop`, such as a `threading.Event`, ends the race once it is set: then it returns `None`. Work that runs looks at it itself.
        """
        lock = self.lock(key, **term)
        while stop is None or not stop.is_set():
            outcome, got = Outcome(on_error), list[Lease]()
            try:
                result = _surely(got, partial(_lead, lock, stop, got, outcome, work))
            except Stopped:
                break
            except (Unavailable, Unknown) as error:
                if got:
                    raise
                _LOG.warning("cannot stand for election: %s", error)
                time.sleep(random.uniform(0.5, 1.0))  # noqa: S311
                continue
            if outcome.is_last():
                return result
            if outcome.has_failed:
                time.sleep(random.uniform(0.5, 1.0))  # noqa: S311
        return None

    def close(self, within: float = _CLOSE_WITHIN) -> int:
        """Releases all leases, ends what waits, and returns once releases have been answered, after this time at the latest.

        Whoever works under a lease is told that it is lost (`released`). Returns how many leases it could not release, which end with
        their ttl.
        """
        try:
            return self._runner().close(_wire.bound("within", within) or 0.0)
        except Error:
            raise
        except BaseException:
            # Twice: see `_let_go`.
            try:
                self._runner().close_soon(_CLOSE_WITHIN)
            finally:
                self._runner().close_soon(_CLOSE_WITHIN)
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def _runner(self) -> Runner:
        """The runner of this process."""
        process = _fork.process()
        runner = self._runners.get(process)
        return runner if runner is not None else self._runners.setdefault(process, Runner(self._settings))


class Lock:
    """A lock, from `Client.lock`. Each `with` acquires a lease of its own."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client, self._options = client, options
        self._blocks: Blocks[Lease] = Blocks()

    def acquire(self, *, timeout: float | None = None) -> Lease:
        """Acquires a lease: waits its turn, first come first served. `timeout` bounds the whole call, in seconds.

        If it is interrupted, the place, or the grant, is given back.
        """
        return self._acquire(self._options.spec, timeout)

    def try_acquire(self, *, timeout: float | None = None) -> Lease:
        """Tries once: raises `Held` if a key is not free. `timeout` bounds the whole call, in seconds."""
        return self._acquire(_wire.tried(self._options.spec), timeout)

    def _acquire(self, spec: _wire.Spec, timeout: float | None, stop: Stop | None = None) -> Lease:
        bound = _wire.bound("timeout", timeout)
        runner = self._client._runner()

        async def work(engine: Engine) -> Lease:
            held = await engine.acquire(spec, bound)
            return Lease(self._client, runner, engine, held, self._options.on_lost)

        # If the caller is interrupted meanwhile, nobody has the lease, and it is released.
        return runner.run(work, bound, stop, Lease._give_back)

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        """The same function, each call of which has a lease of its own."""

        @functools.wraps(work)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            got: list[Lease] = []

            def under_a_lease() -> T:
                got.append(self.acquire())
                with got[0]:
                    return work(*args, **kwargs)

            return _surely(got, under_a_lease)

        return locked

    def __enter__(self) -> Lease:
        got: list[Lease] = []
        return _surely(got, partial(self._enter, caller(), got))

    def _enter(self, place: Place | None, got: list[Lease]) -> Lease:
        got.append(self.acquire())
        try:
            self._blocks.enter(place, _thread.get_ident(), got[0])
            return got[0].__enter__()
        except BaseException:
            self._blocks.forget(got[0])
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left: list[Lease] = []
        try:
            self._blocks.leave(caller(), _thread.get_ident(), left).__exit__(kind, error, traceback)
        except Error:
            raise
        except BaseException:
            try:
                self._let_go(caller(), left)
            finally:
                self._let_go(caller(), left)
            raise

    def _let_go(self, place: Place | None, left: list[Lease]) -> None:
        if not left:
            self._blocks.leave(place, _thread.get_ident(), left)
        _let_go(left)
        self._blocks.forget(*left)


class Lease(BaseLease):
    """A granted lease. Use it with `with`, or call `release`. If it is dropped, it is released in the background."""

    def __init__(
        self,
        client: Client,
        runner: Runner,
        engine: Engine,
        held: Held,
        on_lost: Callable[[Lease], Any] | None,
    ) -> None:
        super().__init__(held)
        # The client lives as long as its leases.
        self._client, self._runner, self._engine = client, runner, engine
        self._is_entered = False
        self._dropped = weakref.finalize(self, _drop, runner, engine, held)
        self._dropped.atexit = False
        # Its object may have the lease: nothing that outlives the handle refers to it.
        self._on_lost = on_lost
        if on_lost is not None:
            _tell(self)

    def renew(self, ttl: float | None = None, *, timeout: float | None = None) -> None:
        """Renews it now, perhaps with another ttl. There is no need to if it renews itself. `timeout` bounds the call."""
        self.check()
        ttl_ms, bound = None if ttl is None else _wire.ttl_ms(ttl), _wire.bound("timeout", timeout)
        self._runner.run(lambda engine: engine.renew(self._held, ttl_ms, bound), bound)

    def release(self, *, timeout: float | None = None) -> None:
        """Releases the keys. A repeat does nothing. `timeout` bounds the call, in seconds.

        Raises `Lost` if the lease was lost before: what was done under it may have met another holder. After `Unknown`,
        `Unavailable` and `TimedOut` the release is repeated in the background. With `hold_at_least` the keys stay held until that
        time has passed since the grant.

        While the interpreter ends, nothing can be released any more: that goes to the log, and the lease ends with its ttl.
        """
        try:
            if self._held.is_forked:
                raise Lost("forked")
            bound = _wire.bound("timeout", timeout)
            if not self._held.is_released:
                self._release(bound)
        except Error:
            raise
        except BaseException:
            try:
                _let_go([self])
            finally:
                _let_go([self])
            raise

    def _release(self, timeout: float | None) -> None:
        if sys.is_finalizing():
            self._dropped.detach()
            _LOG.warning("a lease was to be released while the program ended: it ends with its ttl")
            return
        try:
            result = self._runner.begin(self._begin_release)
        except Closed:
            lost = self._loss()
            if lost is None:
                raise
            raise Lost(lost) from None
        # From now on it is done, whatever interrupts the caller.
        self._dropped.detach()
        self._runner.wait(result, timeout)

    def _begin_release(self, engine: Engine, result: Result[None]) -> None:
        if self._held.is_released:
            result.succeed(None)
            return
        told, lost = engine.begin_release(self._held)

        def tell(told: asyncio.Future[None]) -> None:
            error = told.exception() if lost is None else Lost(lost)
            result.succeed(None) if error is None else result.fail(error)

        told.add_done_callback(tell)

    def _give_back(self) -> None:
        """Nobody has got it. On the loop."""
        self._dropped.detach()
        self._engine.drop(self._held)

    def into_id(self) -> str:
        """Leaves the lease as it is, and returns its id: it ends with its ttl unless somebody adopts or releases it."""
        self.check()
        self._runner.run(self._give_up)
        self._dropped.detach()
        return self.lease_id

    def wait_lost(self, timeout: float | None = None) -> LossReason | None:
        """Waits until the lease is lost or released, and returns the reason; `None` after this many seconds."""
        return self._held.wait_lost(_wire.bound("timeout", timeout))

    def __enter__(self) -> Lease:
        if self._is_entered:
            raise RuntimeError("a lease is entered once")
        try:
            self.check()
        except Error:
            raise
        except BaseException:
            try:
                _let_go([self])
            finally:
                _let_go([self])
            raise
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._exit(error)
        except Error:
            raise
        except BaseException:
            try:
                _let_go([self])
            finally:
                _let_go([self])
            raise

    def _exit(self, error: BaseException | None) -> None:
        if self._held.is_forked:
            if error is None:
                raise Lost("forked")
            return
        reason = self._loss()
        try:
            if not self._held.is_released:
                self._release(None)
        except (Unknown, Unavailable):
            # It goes on in the background.
            pass
        except Error as failure:
            if error is None:
                raise
            _LOG.debug("a lease was not released, and the error of the block says more: %s", failure)
        if reason is not None and error is None:
            raise Lost(reason)

    async def _give_up(self, engine: Engine) -> None:
        engine.give_up(self._held)


def _lead(
    lock: Lock, stop: Stop | None, got: list[Lease], outcome: Outcome, work: Callable[[Lease], T]
) -> T | None:
    """Leads for one term."""
    got.append(lock._acquire(lock._options.spec, None, stop))
    with outcome.until_lost(), got[0], outcome.of_work():
        return work(got[0])
    return None


def _surely(leases: list[Lease], work: Callable[[], T]) -> T:
    """Works under leases that it acquires. Keeps none of them, whatever a signal handler raises meanwhile."""
    try:
        return work()
    except BaseException:
        try:
            _let_go(leases)
        finally:
            _let_go(leases)
        raise


def _let_go(leases: list[Lease]) -> None:
    """Releases the leases of interrupted code in the background: somebody may keep the traceback, and with it the handles.

    It is called twice, once in a `finally`: if two signals come at once, it may be interrupted at its first step, too.
    """
    for lease in leases:
        if lease._dropped.alive:
            lease._runner.call_soon(lease._give_back)


def _drop(runner: Runner, engine: Engine, held: Held) -> None:
    is_leak = held.loss() is None
    runner.call_soon(engine.drop, held)
    if is_leak:
        report_leak(held)


def _tell(lease: Lease) -> None:
    """Calls back on a thread of its own, which may take as long as it likes. Does not keep the lease alive."""
    weak = weakref.ref(lease)

    def call() -> None:
        alive = weak()
        if alive is not None and alive._on_lost is not None:
            told = partial(alive._on_lost, alive)
            if not begin(partial(guarded, told), "ringfence-lost"):
                # There may be room for a thread later.
                alive._engine.loop.call_later(1.0, call)

    lease._held.on_told(call)


def _abandon(runners: dict[tuple[int, int], Runner]) -> None:
    runner = runners.get(_fork.process())
    if runner is not None:
        runner.abandon()
