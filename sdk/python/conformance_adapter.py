"""Plays the client's part in the conformance suite: requests and answers are lines of JSON. `--threads` plays the other client.

Logs go to stderr. The runner names clients and leases.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ringfence
from ringfence._clock import now

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
]
# A thread cannot be cancelled, and the thread that renews goes on while another is blocked.
ABILITIES += [] if THREADS else ["cancel", "block"]


class BodyError(Exception):
    """The body of a block failed, as it was told."""


class PlayedClock:
    """The system's clock, and how far the runner has set it ahead."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> ringfence.Moment:
        """The time."""
        return now().after(self.ahead_ns)


class Adapter:
    """The clients and leases, by name, and the requests that have no answer yet."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.leases: dict[str, Any] = {}
        self.pending: dict[int, asyncio.Task[None]] = {}
        self.waiting: list[asyncio.Task[None]] = []
        self.clock = PlayedClock()

    async def serve(self) -> None:
        """Takes requests until the runner ends them."""
        loop = asyncio.get_running_loop()
        # Of two cores Python makes six threads, and any number of calls may wait.
        loop.set_default_executor(ThreadPoolExecutor(256))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            if request["op"] == "exit":
                return
            self.pending[request["id"]] = asyncio.create_task(self.answer(request))

    async def answer(self, request: dict[str, Any]) -> None:
        """Does what is asked, and says what came of it."""
        try:
            ok = await getattr(self, f"do_{request['op']}")(
                **{k: v for k, v in request.items() if k not in ("id", "op")}
            )
            say({"id": request["id"], "ok": ok or {}})
        except asyncio.CancelledError:
            say({"id": request["id"], "error": {"kind": "Cancelled", "message": "cancelled"}})
        except Exception as error:  # noqa: BLE001 the runner judges it
            say({"id": request["id"], "error": described(error)})
        finally:
            del self.pending[request["id"]]

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a method of either client."""
        return await (asyncio.to_thread(function, *arguments) if THREADS else function(*arguments))

    async def do_hello(self) -> dict[str, Any]:
        return {"sdk": "python, threads" if THREADS else "python, asyncio", "abilities": ABILITIES}

    async def do_open(self, client: str, urls: list[str], clock: str = "real", **tls: str | None) -> None:
        kind = ringfence.Client if THREADS else ringfence.aio.Client
        given = {name: value for name, value in tls.items() if value is not None}
        self.clients[client] = kind(urls, clock=self.clock if clock == "played" else now, **given)

    async def do_acquire(self, client: str, lease: str, **request: Any) -> dict[str, Any]:
        lock = self.lock(client, **request)
        return self.granted(lease, await self.call(lock.acquire))

    async def do_try(self, client: str, lease: str, **request: Any) -> dict[str, Any]:
        return await self.do_acquire(client, lease, **{**request, "wait_ms": 0})

    async def do_using(self, client: str, lease: str, body: str, ms: int = 0, **request: Any) -> None:
        lock = self.lock(client, **request)

        def in_thread() -> None:
            with lock as held:
                self.granted(lease, held)
                if body == "until_lost":
                    held.wait_lost()
                time.sleep(ms / 1_000)
                if body == "raise":
                    raise BodyError("the body failed")

        async def in_task() -> None:
            async with lock as held:
                self.granted(lease, held)
                await asyncio.sleep(1e6 if body == "until_lost" else ms / 1_000)
                if body == "raise":
                    raise BodyError("the body failed")

        await self.call(in_thread if THREADS else in_task)

    async def do_cancel(self, target: int) -> None:
        self.pending[target].cancel()

    async def do_renew(self, lease: str, ttl_ms: int | None = None) -> None:
        await self.call(self.leases[lease].renew, None if ttl_ms is None else ttl_ms / 1_000)

    async def do_release(self, lease: str) -> None:
        await self.call(self.leases[lease].release)

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
        return self.granted(lease, await self.call(self.clients[client].adopt, lease_id))

    async def do_block(self, ms: int) -> None:
        time.sleep(ms / 1_000)  # noqa: ASYNC251 it is to block

    async def do_clock(self, advance_ms: int) -> None:
        self.clock.ahead_ns += advance_ms * 1_000_000

    async def do_fork(self, lease: str) -> dict[str, Any]:
        held = self.leases[lease]
        reader, writer = os.pipe()
        if os.fork() == 0:
            seen = {"state": held.state.value, "reason": held.lost_reason}
            os.write(writer, json.dumps(seen).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            seen = json.loads(await asyncio.to_thread(pipe.read))
        await asyncio.to_thread(os.wait)
        return {"child": seen}

    async def do_close(self, client: str) -> None:
        await self.call(self.clients[client].close)

    def lock(self, client: str, keys: list[Any], **request: Any) -> Any:
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
        return self.clients[client].lock(claims, **options)

    def granted(self, lease: str, held: Any) -> dict[str, Any]:
        """Keeps a new lease, and returns what the runner wants to know of it."""
        self.leases[lease] = held
        if THREADS:
            threading.Thread(target=lambda: lost(lease, held.wait_lost()), daemon=True).start()
        else:
            self.waiting.append(asyncio.create_task(tell(lease, held)))
        fences = {key: held.fence(key) for key in held.keys}
        return {"lease_id": held.lease_id, "token": held.token, "fences": fences, "state": held.state.value}


async def tell(lease: str, held: Any) -> None:
    """Tells the runner of a loss, once it comes."""
    lost(lease, await held.wait_lost())


def lost(lease: str, reason: str | None) -> None:
    """Tells the runner of a loss."""
    say({"event": "lost", "lease": lease, "reason": reason})


def described(error: Exception) -> dict[str, Any]:
    """An error as the protocol has it."""
    kind = type(error).__name__ if isinstance(error, ringfence.Error) else "Internal"
    if isinstance(error, BodyError):
        kind = "Body"
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


if __name__ == "__main__":
    asyncio.run(Adapter().serve())
