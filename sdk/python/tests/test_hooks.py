"""What hooks are told, and what they cannot do."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster import SOON, Cluster, until
from played import Background, Played, granted

import ringfence
from ringfence import _threads, aio


class Told(ringfence.Hooks):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[str, ...]]] = []

    def waited(self, keys: Sequence[str], seconds: float) -> None:
        assert 0 < seconds < SOON
        self.events.append(("waited", tuple(keys)))

    def granted(self, lease: ringfence.LeaseView, seconds: float) -> None:
        assert lease.token > 0
        assert 0 < seconds < SOON
        self.events.append(("granted", lease.keys))

    def renewed(self, lease: ringfence.LeaseView) -> None:
        self.events.append(("renewed", lease.keys))

    def failed(self, lease: ringfence.LeaseView, why: str) -> None:
        assert why
        self.events.append(("failed", lease.keys))

    def lost(self, lease: ringfence.LeaseView, reason: ringfence.LossReason) -> None:
        self.events.append((f"lost: {reason}", lease.keys))

    def released(self, lease: ringfence.LeaseView) -> None:
        self.events.append(("released", lease.keys))

    def names(self, key: str) -> list[str]:
        return [name for name, keys in self.events if keys == (key,)]


def test_hooks_are_told_what_becomes_of_leases(cluster: Cluster) -> None:
    told = Told()
    with ringfence.Client(cluster.urls, hooks=told) as client, ThreadPoolExecutor(1) as pool:
        with client.lock("hooks/a", ttl=600) as lease:
            waiting = pool.submit(client.lock("hooks/a", wait=SOON).acquire)
            engine: Any = client._runner().engine()
            until(
                lambda: engine.cluster.waits._free < 32,
                "it has a place, and waits on a connection of its own",
            )
            lease.renew()
        kept = waiting.result(SOON)
        client.lock("hooks/lost", max_hold=0.2).acquire().wait_lost()
        client.lock("hooks/left").acquire().into_id()
    assert kept.lost_reason == "released"
    until(lambda: told.names("hooks/a").count("released") == 2, "all is told")
    names = told.names("hooks/a")
    assert names[:2] == ["granted", "renewed"]
    assert sorted(names) == ["granted", "granted", "released", "released", "renewed", "waited"]
    assert told.names("hooks/lost") == ["granted", "lost: max-hold"]
    assert told.names("hooks/left") == ["granted"], "whoever has its id releases it"


def test_hooks_of_tasks_are_told_of_renewals_that_fail(background: Background, node: Played) -> None:
    told = Told()

    async def main() -> None:
        async with aio.Client(node.url, hooks=told) as client:
            acquiring = asyncio.create_task(client.lock("a", ttl=3).acquire())
            (await asyncio.to_thread(node.receive, "PUT")).grant()
            lease = await acquiring
            (await asyncio.to_thread(node.receive, "POST", "/v1/renew")).problem(503, "unavailable")
            (await asyncio.to_thread(node.receive, "POST", "/v1/renew")).renew_all(ttl_ms=3_000)
            while "renewed" not in told.names("a"):
                await asyncio.sleep(0)
            release = asyncio.create_task(lease.release())
            while (asked := await asyncio.to_thread(node.receive)).method != "DELETE":
                asked.renew_all(ttl_ms=3_000)
            asked.answer(204)
            await release
            await asyncio.sleep(0)

    background(lambda: asyncio.run(main())).result(SOON)
    names = told.names("a")
    assert (names[:3], names[-1]) == (["granted", "failed", "renewed"], "released")


def test_a_hook_that_fails_or_blocks_stops_nothing(
    background: Background, node: Played, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad(ringfence.Hooks):
        granted: Callable[..., Any] = lambda *_: 1 / 0

        def renewed(self, lease: ringfence.LeaseView) -> None:
            threading.Event().wait()

    monkeypatch.setattr("ringfence._hooks._MOST", 2)
    client = ringfence.Client(node.url, hooks=Bad())
    lease = granted(background, client, node, ttl=3)
    for _ in range(5):
        node.receive("POST", "/v1/renew").renew_all(ttl_ms=3_000)
    assert lease.state is ringfence.State.HELD
    until(lambda: "the hook `granted` has failed" in caplog.text, "it is told")
    until(lambda: "2 events wait for a hook that blocks" in caplog.text, "some are not told")
    lease.into_id()
    client.close()


def test_hooks_keep_their_thread_and_are_told_though_none_could_begin_at_the_last_event(
    background: Background, node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the last events were never told, and each burst of events had its own thread and connections."""
    begin, refused = _threads.begin, 3
    told = queue.SimpleQueue[threading.Thread]()

    def refuse(main: Callable[[], object], name: str) -> bool:
        nonlocal refused
        refused -= 1
        return refused < 0 and begin(main, name)

    class Told(ringfence.Hooks):
        def granted(self, lease: ringfence.LeaseView, seconds: float) -> None:
            told.put(threading.current_thread())

    monkeypatch.setattr("ringfence._hooks._PAUSE", 0.01)
    monkeypatch.setattr("ringfence._hooks._LINGERS", 2 * SOON)
    monkeypatch.setattr("ringfence._threads.begin", refuse)
    client = ringfence.Client(node.url, hooks=Told())
    granted(background, client, node).into_id()
    first = told.get(timeout=SOON)
    first.join(0.1)
    granted(background, client, node).into_id()
    assert told.get(timeout=SOON) is first
    client.close()
    first.join(SOON)
    assert not first.is_alive()


def test_a_hook_that_nobody_would_await_is_refused() -> None:
    class Async(ringfence.Hooks):
        async def released(self, lease: ringfence.LeaseView) -> None:  # type: ignore[override]
            pass

    for kind in (ringfence.Client, aio.Client):
        with pytest.raises(ringfence.Invalid, match="hooks: `released` is a coroutine function"):
            kind("http://127.0.0.1:1", hooks=Async())
