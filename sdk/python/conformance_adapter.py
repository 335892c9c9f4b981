"""Plays the client's part in the conformance suite: requests and answers are lines of JSON. `--threads` plays the other client.

Logs go to stderr. The runner names clients and leases.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any

import ringfence
from ringfence._clock import now
from ringfence.aio import _wait_lost

THREADS = "--threads" in sys.argv[1:]
ABILITIES = [
    "using",
    "shared",
    "clock",
    "fork",
    "tls",
    "credential",
    "adopt",
    "headers",
    "hold_at_least",
    "max_hold",
    "deadline",
    "leave",
    "drop",
    "leaked",
    "exit",
    "on_lost",
    "lead",
    "close",
    "resources",
]
# A thread cannot be cancelled, and the thread that renews goes on while another one is blocked. In asyncio, Ctrl-C cancels a task and
# ends the loop: `cancel` and `exit` play that.
ABILITIES += ["on_lost_block", "interrupt"] if THREADS else ["cancel", "block"]


IS_ON_MAIN: ContextVar[bool] = ContextVar("IS_ON_MAIN", default=False)


class BodyError(Exception):
    """The body of a block failed, as it was told."""


class Interrupted(Exception):
    """The thread of a request was interrupted."""


class PlayedClock:
    """The system's clock, and how far the runner has set it ahead."""

    def __init__(self) -> None:
        self.boot_ns = self.raw_ns = 0

    def __call__(self) -> ringfence.Moment:
        """The time."""
        real = now()
        return ringfence.Moment(real.boot + self.boot_ns, real.raw + self.raw_ns)


class Adapter:
    """The clients and leases, by name, and the requests that have no answer yet."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.leases: dict[str, Any] = {}
        self.blocks: dict[str, Any] = {}
        self.pending: dict[int, asyncio.Task[None]] = {}
        self.watching: dict[str, asyncio.Task[None]] = {}
        self.clock = PlayedClock()
        # Work for the main thread, the only one that an interrupt reaches.
        self.on_main: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def serve(self) -> None:
        """Takes requests until the runner ends them."""
        reader = ThreadPoolExecutor(1)
        while line := await asyncio.get_running_loop().run_in_executor(reader, sys.stdin.readline):
            request = json.loads(line)
            if request["op"] == "exit":
                break
            self.begin(request)
        self.on_main.put(None)

    def work(self) -> None:
        """Does the work of the main thread. Returns at the end of the program, whatever else is pending."""
        while True:
            try:
                call = self.on_main.get()
                if call is None:
                    return
                call()
            except KeyboardInterrupt:
                # The interrupt came after its request had ended.
                continue

    def begin(self, request: dict[str, Any]) -> None:
        """Begins a request."""
        self.pending[request["id"]] = asyncio.create_task(self.answer(request))

    async def answer(self, request: dict[str, Any]) -> None:
        """Does what is asked, and says what came of it."""
        try:
            IS_ON_MAIN.set(request.get("interruptible", False))
            ok = await getattr(self, f"do_{request['op']}")(
                **{k: v for k, v in request.items() if k not in ("id", "op", "interruptible")}
            )
            say({"id": request["id"], "ok": ok or {}})
        except asyncio.CancelledError:
            say({"id": request["id"], "error": {"kind": "Cancelled", "message": "cancelled"}})
        except Exception as error:  # noqa: BLE001 the runner judges it
            say({"id": request["id"], "error": described(error)})
        finally:
            del self.pending[request["id"]]

    async def call(self, function: Callable[..., Any], deadline_ms: int | None = None) -> Any:
        """Calls a method of either client, perhaps with a bound."""
        if deadline_ms is not None:
            function = partial(function, timeout=deadline_ms / 1_000)
        if not THREADS:
            return await function()
        return await in_thread(function, self.on_main.put if IS_ON_MAIN.get() else begin_thread)

    async def do_many(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self.begin(request)

    async def do_hello(self) -> dict[str, Any]:
        return {"sdk": "python, threads" if THREADS else "python, asyncio", "abilities": ABILITIES}

    async def do_open(self, client: str, urls: list[str], clock: str = "real", **tls: str | None) -> None:
        kind = ringfence.Client if THREADS else ringfence.aio.Client
        given = {name: value for name, value in tls.items() if value is not None}
        self.clients[client] = kind(urls, clock=self.clock if clock == "played" else now, **given)

    async def do_acquire(
        self, client: str, lease: str, deadline_ms: int | None = None, **request: Any
    ) -> dict[str, Any]:
        lock = self.lock(client, **request)
        return self.granted(lease, await self.call(lock.acquire, deadline_ms))

    async def do_try(
        self, client: str, lease: str, deadline_ms: int | None = None, **request: Any
    ) -> dict[str, Any]:
        lock = self.lock(client, **request)
        return self.granted(lease, await self.call(lock.try_acquire, deadline_ms))

    async def do_using(self, client: str, lease: str, body: str, ms: int = 0, **request: Any) -> None:
        lock = self.lock(client, **request)

        def in_thread() -> None:
            with lock as held:
                self.granted(lease, held)
                if body in ("until_lost", "swallow"):
                    held.wait_lost()
                time.sleep(ms / 1_000)
                if body == "raise":
                    raise BodyError("the body failed")

        async def in_task() -> None:
            async with lock as held:
                self.granted(lease, held)
                try:
                    await asyncio.sleep(1e6 if body in ("until_lost", "swallow") else ms / 1_000)
                except asyncio.CancelledError:
                    if body != "swallow":
                        raise
                if body == "raise":
                    raise BodyError("the body failed")

        await self.call(in_thread if THREADS else in_task)

    async def do_enter(self, client: str, lease: str, **request: Any) -> None:
        lock = self.blocks[lease] = self.lock(client, **request)
        self.granted(lease, await self.call(lock.__enter__ if THREADS else lock.__aenter__))

    async def do_leave(self, lease: str) -> None:
        lock = self.blocks.pop(lease)
        leave = lock.__exit__ if THREADS else lock.__aexit__
        await self.call(partial(leave, None, None, None))

    async def do_drop(self, lease: str) -> None:
        task = self.watching.pop(lease, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            del task
        del self.leases[lease]
        gc.collect()

    async def do_lead(self, client: str, lease: str, key: str, ttl_ms: int, body: str) -> dict[str, Any]:
        terms, reported = 0, []

        def begin(held: Any) -> str:
            nonlocal terms
            terms += 1
            say({"event": "leads", "lease": lease, "token": held.token})
            if terms > 1 or body == "return":
                return "return"
            if body == "raise_stale":
                raise ringfence.Stale("the guard refused the token")
            if body == "raise":
                raise BodyError("the body failed")
            return body

        def in_thread(held: Any) -> None:
            if begin(held) == "raise_after_loss":
                held.wait_lost()
                raise BodyError("the body failed")

        async def in_task(held: Any) -> None:
            if begin(held) == "raise_after_loss":
                try:
                    await asyncio.sleep(1e6)
                except asyncio.CancelledError:
                    raise BodyError("the body failed") from None

        lead = self.clients[client].lead
        work = in_thread if THREADS else in_task
        await self.call(lambda: lead(key, work, ttl=ttl_ms / 1_000, on_error=reported.append))
        return {"terms": terms, "reported": len(reported)}

    async def do_cancel(self, target: int) -> None:
        self.pending[target].cancel()

    async def do_interrupt(self, target: int) -> None:
        if target not in self.pending:
            raise LookupError("it is not pending")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    async def do_renew(self, lease: str, ttl_ms: int | None = None, deadline_ms: int | None = None) -> None:
        ttl = None if ttl_ms is None else ttl_ms / 1_000
        await self.call(partial(self.leases[lease].renew, ttl), deadline_ms)

    async def do_release(self, lease: str, deadline_ms: int | None = None) -> None:
        await self.call(self.leases[lease].release, deadline_ms)

    async def do_state(self, lease: str) -> dict[str, Any]:
        held = self.leases[lease]
        return {
            "state": held.state.value,
            "remaining_ms": int(held.remaining * 1_000),
            "reason": held.lost_reason,
        }

    async def do_headers(self, lease: str, key: str) -> dict[str, Any]:
        return {"headers": self.leases[lease].headers(key)}

    async def do_fence(self, lease: str, key: str) -> dict[str, Any]:
        return {"fence": self.leases[lease].fence(key)}

    async def do_adopt(self, client: str, lease: str, lease_id: str) -> dict[str, Any]:
        return self.granted(lease, await self.call(partial(self.clients[client].adopt, lease_id)))

    async def do_block(self, ms: int) -> None:
        time.sleep(ms / 1_000)  # noqa: ASYNC251 it is to block

    async def do_clock(self, advance_ms: int | dict[str, int]) -> None:
        by = advance_ms if isinstance(advance_ms, dict) else {"boot": advance_ms, "raw": advance_ms}
        self.clock.boot_ns += by.get("boot", 0) * 1_000_000
        self.clock.raw_ns += by.get("raw", 0) * 1_000_000

    async def do_fork(self, lease: str) -> dict[str, Any]:
        held = self.leases[lease]
        reader, writer = os.pipe()
        if os.fork() == 0:
            seen = {"state": held.state.value, "reason": held.lost_reason}
            os.write(writer, json.dumps(seen).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            seen = json.loads(await in_thread(pipe.read))
        await in_thread(os.wait)
        return {"child": seen}

    async def do_close(self, client: str, within_ms: int | None = None) -> dict[str, Any]:
        close = self.clients[client].close
        within = {} if within_ms is None else {"within": within_ms / 1_000}
        return {"left": await self.call(partial(close, **within))}

    async def do_resources(self) -> dict[str, int]:
        return {
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    def lock(self, client: str, keys: list[Any], on_lost: str | None = None, **request: Any) -> Any:
        """The lock that a request describes."""
        claims = [
            one
            if isinstance(one, str)
            else ringfence.Claim(one["key"], bool(one.get("shared") or one.get("limit")), one.get("limit"))
            for one in keys
        ]
        # Names that end in their unit are times.
        options = {
            name.removesuffix("_ms"): value / 1_000 if name.endswith("_ms") and value is not None else value
            for name, value in request.items()
        }
        options = {name: value for name, value in options.items() if value is not None}
        if on_lost is not None:
            options["on_lost"] = fails if on_lost == "raise" else blocks
        return self.clients[client].lock(claims, **options)

    def granted(self, lease: str, held: Any) -> dict[str, Any]:
        """Keeps a new lease, and returns what the runner wants to know of it."""
        self.leases[lease] = held
        # Whoever waits for the loss does not keep the handle.
        state = held._held
        if THREADS:
            threading.Thread(target=lambda: lost(lease, state.wait_lost()), daemon=True).start()
        else:
            self.watching[lease] = asyncio.create_task(tell(lease, state))
        fences = {key: held.fence(key) for key in held.keys}
        return {"lease_id": held.lease_id, "token": held.token, "fences": fences, "state": held.state.value}


def begin_thread(call: Callable[[], None]) -> None:
    """Calls it on a thread of its own, which does not keep the process."""
    threading.Thread(target=call, daemon=True).start()


async def in_thread(
    function: Callable[[], Any], begin: Callable[[Callable[[], None]], None] = begin_thread
) -> Any:
    """Calls `function` on another thread."""
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def tell(outcome: list[Any]) -> None:
        result, error = outcome.pop()
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)

    def call() -> None:
        # The thread keeps no handle, however long it takes to end.
        outcome: list[Any] = []
        try:
            outcome.append((function(), None))
        except KeyboardInterrupt as error:
            outcome.append((None, Interrupted(repr(error))))
        except BaseException as error:  # noqa: BLE001 the caller gets it
            outcome.append((None, error))
        # The program may have ended.
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, outcome)

    begin(call)
    return await done


class OneLine(logging.Formatter):
    """Stack traces are for people."""

    def formatException(self, ei: Any) -> str:
        return repr(ei[1])


def fails(lease: Any) -> None:
    """A callback."""
    raise BodyError("the callback failed")


def blocks(lease: Any) -> None:
    """A callback."""
    threading.Event().wait()


async def tell(lease: str, held: Any) -> None:
    """Tells the runner of a loss, once it comes."""
    lost(lease, await _wait_lost(held))


def lost(lease: str, reason: str | None) -> None:
    """Tells the runner of a loss."""
    say({"event": "lost", "lease": lease, "reason": reason})


def described(error: Exception) -> dict[str, Any]:
    """An error as the protocol has it."""
    kind = type(error).__name__ if isinstance(error, ringfence.Error) else "Internal"
    if isinstance(error, BodyError | Interrupted):
        kind = "Body" if isinstance(error, BodyError) else "Interrupted"
    holders = [
        {
            "key": one.key,
            "token": one.token,
            "holder": one.holder,
            "mode": "shared" if one.shared else "exclusive",
            "expires_in_ms": int(one.expires_in * 1_000),
        }
        for one in getattr(error, "holders", ())
    ]
    more = {
        "reason": getattr(error, "reason", None),
        "lease_id": getattr(error, "lease_id", None),
        "retry_after_ms": None,
    }
    return {"kind": kind, "message": str(error), **more, "holders": holders or None}


def say(line: dict[str, Any]) -> None:
    """One line of JSON. One write, so that threads do not mix theirs."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def warn(message: Warning | str, category: type[Warning], file: str, line: int, *more: Any) -> None:
    """Tells the runner what the library says of a handle that was dropped."""
    if issubclass(category, ResourceWarning) and "ringfence" in str(message):
        say({"event": "leaked", "message": str(message)})
    else:
        sys.stderr.write(warnings.formatwarning(message, category, file, line))


if __name__ == "__main__":
    log = logging.StreamHandler()
    log.setFormatter(OneLine("%(levelname)s %(message)s"))
    logging.basicConfig(handlers=[log])
    warnings.simplefilter("always")
    warnings.showwarning = warn  # type: ignore[assignment]
    if THREADS:
        adapter = Adapter()
        # A script that starts this in the background has it ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        begin_thread(lambda: asyncio.run(adapter.serve()))
        adapter.work()
    else:
        # Nothing may keep the handles beyond the loop.
        asyncio.run(Adapter().serve())
