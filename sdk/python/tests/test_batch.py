"""Calls that begin together share requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from cluster import SOON, Cluster
from played import Asked, Background, Played, grant, problem
from test_handles import run

import ringfence
from ringfence import aio
from ringfence._batch import Batcher
from ringfence._clock import now
from ringfence._http import Request, Response
from ringfence._outcome import Untrusted

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def granted(operation: dict[str, Any]) -> dict[str, Any]:
    [(kind, one)] = operation.items()
    if kind == "release":
        return {"status": 204, "body": None}
    keys = [key["key"] for key in one.get("keys", [])] or ["a"]
    return {"status": 201, "body": grant(one["lease_id"], 7, one.get("ttl_ms", 15_000), keys)}


def answer(asked: Asked, how: Answer = granted) -> None:
    asked.answer(200, {"results": [how(one) for one in asked.body["operations"]]})


def begin(background: Background, node: Played, work: Callable[[aio.Client], Any]) -> Future[Any]:
    return background(lambda: run(work, node.url))


async def acquire(client: aio.Client, count: int) -> list[aio.Lease]:
    return await asyncio.gather(*(client.lock(f"k/{one}", wait=0).acquire() for one in range(count)))


def test_calls_of_one_turn_share_a_request_and_three_thousand_releases_are_few(
    background: Background, node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without this, a client that waits long would look at the key.
    monkeypatch.setattr("ringfence._acquire._TELLS_AFTER", SOON)

    async def main() -> None:
        async with aio.Client(node.url) as client:
            leases = await acquire(client, 3_000)
            await asyncio.gather(*(lease.release() for lease in leases))

    # Not in the loop's debug mode: for so many calls, that takes longer than a call may.
    call = background(lambda: asyncio.run(main()))
    for kind in ("acquire", "release"):
        seen = 0
        while seen < 3_000:
            asked = node.receive("POST", "/v1/batch")
            operations = asked.body["operations"]
            assert {name for one in operations for name in one} == {kind}
            assert len(operations) == 1_000
            seen += len(operations)
            answer(asked)
    call.result(SOON)
    assert node.is_quiet()


def test_a_call_that_is_alone_is_no_batch_and_renewals_have_their_own_connection(
    background: Background, node: Played
) -> None:
    is_renewed = threading.Event()

    async def work(client: aio.Client) -> None:
        lease = await client.lock("a", ttl=3, wait=5).acquire()
        await asyncio.to_thread(is_renewed.wait)
        await lease.release()

    call = begin(background, node, work)
    put = node.receive("PUT")
    assert put.body["wait_ms"] == 100
    put.grant()
    renewal = node.receive("POST", "/v1/renew")
    assert renewal.connection is not put.connection
    renewal.renew_all(ttl_ms=3_000)
    is_renewed.set()
    while (asked := node.receive()).method != "DELETE":
        assert asked.connection is renewal.connection
        asked.renew_all(ttl_ms=3_000)
    assert asked.connection is put.connection
    asked.answer(204)
    call.result(SOON)


def test_each_call_of_a_batch_has_its_own_outcome(background: Background, node: Played) -> None:
    async def work(client: aio.Client) -> list[Any]:
        calls = (client.lock(f"k/{one}", wait=0).acquire() for one in range(4))
        return await asyncio.gather(*calls, return_exceptions=True)

    def how(operation: dict[str, Any]) -> dict[str, Any]:
        number = int(operation["acquire"]["keys"][0]["key"][2:])
        if number == 0:
            return {"status": 409, "body": problem(409, "held")}
        if number == 1:
            return {"status": 403, "body": problem(403, "forbidden")}
        if number == 2:
            # The others' results left no room for this one.
            return {"status": 413, "body": problem(413, "too-large")}
        return granted(operation)

    call = begin(background, node, work)
    answer(node.receive("POST", "/v1/batch"), how)
    node.receive("PUT").grant(token=8)
    while not call.done():
        if not node.is_quiet():
            asked = node.receive()
            asked.answer(204) if asked.method == "DELETE" else answer(asked)
    held, denied, alone, batched = call.result(SOON)
    assert (type(held), type(denied)) == (ringfence.Held, ringfence.Unauthorized)
    assert (alone.token, batched.token) == (8, 7)


def test_a_batch_that_is_refused_is_sent_as_single_calls(background: Background, node: Played) -> None:
    async def work(client: aio.Client) -> None:
        leases = await acquire(client, 3)
        assert [lease.token for lease in leases] == [7] * 3
        for lease in leases:
            lease.into_id()

    call = begin(background, node, work)
    node.receive("POST", "/v1/batch").problem(413, "too-large")
    for _ in range(3):
        node.receive("PUT").grant()
    call.result(SOON)


def test_a_batch_without_an_answer_leaves_each_call_in_doubt_and_is_repeated_elsewhere(
    background: Background, node: Played, other: Played
) -> None:
    async def main() -> None:
        async with aio.Client([node.url, other.url]) as client:
            for lease in await acquire(client, 5):
                lease.into_id()

    call = background(lambda: asyncio.run(main()))
    first = node.receive("POST", "/v1/batch")
    first.drop()
    second = other.receive("POST", "/v1/batch")
    ids = [{one["acquire"]["lease_id"] for one in asked.body["operations"]} for asked in (first, second)]
    assert ids[0] == ids[1]
    answer(second)
    call.result(SOON)


def test_a_batch_is_given_up_only_once_all_its_calls_are(background: Background, node: Played) -> None:
    async def work(client: aio.Client) -> None:
        calls = [asyncio.create_task(client.lock(f"k/{one}", wait=0).acquire()) for one in range(3)]
        asked = await asyncio.to_thread(node.receive, "POST", "/v1/batch")
        calls[0].cancel()
        [deleted] = [await asyncio.to_thread(node.receive, "DELETE")]
        deleted.answer(204)
        answer(asked)
        leases = [await calls[1], await calls[2]]
        await asyncio.wait(calls)
        assert calls[0].cancelled()
        for lease in leases:
            lease.into_id()
        calls = [asyncio.create_task(client.lock(f"k/{one}", wait=0).acquire()) for one in range(2)]
        asked = await asyncio.to_thread(node.receive, "POST", "/v1/batch")
        for one in calls:
            one.cancel()
        gone = await asyncio.to_thread(node.receive, "POST", "/v1/batch")
        assert await asyncio.to_thread(asked.is_closed)
        answer(gone)
        await asyncio.wait(calls)

    begin(background, node, work).result(SOON)


def test_a_call_that_is_given_up_leaves_those_of_all_batches_alone() -> None:
    """Once, batches that began together counted as one: giving up one call ended up to 999 others."""

    async def main() -> None:
        go_on, sent = asyncio.Event(), list[int]()

        async def send(request: Request, *_: Any) -> Response:
            sent.append(request.body.count(b"lease_id") or 1)
            await go_on.wait()
            return Response(now(), 504, {}, b"")

        batcher = Batcher(send)

        async def release(number: int) -> Response | None:
            operation = b'{"release":{"lease_id":"%d"}}' % number
            return await batcher.send(
                Request("DELETE", f"/v1/leases/{number}", operation=operation), SOON, bool
            )

        calls = [asyncio.create_task(release(number)) for number in range(1_001)]
        while sent != [1_000, 1]:
            await asyncio.sleep(0)
        calls[5].cancel()
        await asyncio.wait({calls[5]})
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait(calls)
        assert [call.cancelled() for call in calls].count(True) == 1
        assert {one.result().status for one in calls if not one.cancelled()} == {504}  # type: ignore[union-attr]

    asyncio.run(main())


def test_calls_that_stand_behind_a_certificate_that_is_not_trusted_are_told_so() -> None:
    """Once, calls that had not been sent got the error that no node was there, and went on trying for 5 s."""

    async def main() -> None:
        go_on = asyncio.Event()

        async def send(*_: Any) -> Response:
            await go_on.wait()
            raise Untrusted("nobody knows its authority")

        batcher = Batcher(send)
        calls = []
        for number in range(4):
            request = Request("DELETE", "/", operation={"release": {"lease_id": str(number)}})
            calls.append(asyncio.create_task(batcher.send(request, SOON, bool)))
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(batcher._queue) == 2
        go_on.set()
        await asyncio.wait(calls)
        assert [type(call.exception()) for call in calls] == [Untrusted] * 4

    asyncio.run(main())


def test_hundreds_that_wait_use_few_connections_and_all_get_their_turn(cluster: Cluster) -> None:
    count = 200

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def work(client: aio.Client) -> int:
        await (await client.lock("batch/first").acquire()).release()
        before, most = descriptors(), 0

        async def one(number: int) -> None:
            nonlocal most
            async with client.lock(f"batch/wait/{number % 4}", ttl=60, wait=SOON):
                most = max(most, descriptors())
                await asyncio.sleep(0.001)

        await asyncio.gather(*(one(number) for number in range(count)))
        return most - before

    # With those of the renewals. On a busy machine the leader may change meanwhile.
    assert 16 < run(work, cluster.urls) <= 2 * (64 + 1)


def test_a_place_without_a_connection_is_asked_for_within_its_ttl_and_connections_are_passed_on(
    background: Background, node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence._cluster._MOST_WAITS", 1)
    monkeypatch.setattr("ringfence._acquire._POLL", 10 * SOON)

    async def work(client: aio.Client) -> None:
        acquires = [asyncio.create_task(client.lock("a", ttl=60).acquire())]
        waits = [await asyncio.to_thread(receive, 60_000, False)]
        acquires.append(asyncio.create_task(client.lock("a", ttl=8).acquire()))
        await asyncio.to_thread(receive, 8_000, True)
        keep_waiting(waits[0])
        assert (await asyncio.to_thread(receive, 8_000, False)).body["wait_ms"] <= 2_000
        for one in acquires:
            one.cancel()
        await asyncio.wait(acquires)

    def receive(ttl_ms: int, is_brief: bool) -> Asked:
        """The first long wait, or the second brief one, which is answered, as all others are."""
        briefs = 0
        while True:
            asked = serve_deletes(node)
            if (is_this := asked.body["ttl_ms"] == ttl_ms) and not is_brief and asked.body["wait_ms"] > 100:
                return asked
            keep_waiting(asked)
            briefs += is_this
            if is_brief and briefs == 2:
                return asked

    begin(background, node, work).result(SOON)


def test_a_connection_that_comes_during_a_brief_call_is_not_given_away_unused(
    background: Background, node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence._cluster._MOST_WAITS", 1)

    async def work(client: aio.Client) -> None:
        acquires = [asyncio.create_task(client.lock("a", ttl=60).acquire())]
        first = await asyncio.to_thread(receive, node, 60, is_brief=False)
        for ttl in (50, 40):
            acquires.append(asyncio.create_task(client.lock("a", ttl=ttl).acquire()))
            for _ in range(2):
                keep_waiting(await asyncio.to_thread(receive, node, ttl, is_brief=True))
        # Both acquires have asked for the connection by now.
        brief = await asyncio.to_thread(receive, node, 50, is_brief=True)
        first.grant()
        await acquires[0]
        keep_waiting(brief)
        keep_waiting(await asyncio.to_thread(receive, node, 50, is_brief=False))
        while not all(task.done() for task in acquires):
            await asyncio.sleep(0.01)
            if not node.is_quiet():
                serve(node.receive())
        for task in acquires:
            task.result().into_id()

    begin(background, node, work).result(SOON)


def keep_waiting(asked: Asked) -> None:
    if asked.path == "/v1/batch":
        answer(asked, lambda one: {"status": 202, "body": place(one["acquire"]["lease_id"])})
    else:
        asked.answer(202, place(asked.lease_id))


def place(lease_id: str) -> dict[str, Any]:
    return {"state": "waiting", "lease_id": lease_id}


def receive(node: Played, ttl: int, *, is_brief: bool) -> Asked:
    """The next acquire with this ttl. Brief waits of other acquires are answered; a long wait of another one is an error."""
    while True:
        asked = node.receive()
        acquires = [one["acquire"] for one in asked.body.get("operations", [])] or [asked.body]
        found_brief = asked.body.get("wait_ms", 0) <= 100
        if found_brief is is_brief and ttl * 1_000 in [one["ttl_ms"] for one in acquires]:
            return asked
        assert found_brief, "a long wait of another"
        keep_waiting(asked)


def serve_deletes(node: Played) -> Asked:
    while (asked := node.receive()).method == "DELETE":
        asked.answer(204)
    return asked


def test_calls_in_an_outage_that_drops_packets_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence._cluster._MOST_ALONE", 1)
    with contextlib.ExitStack() as holes:
        urls = []
        for _ in range(3):
            hole = holes.enter_context(socket.socket())
            hole.bind(("127.0.0.1", 0))
            hole.listen(0)
            for _ in range(3):
                # Its queue is full: nobody is accepted any more, and nobody refused.
                full = holes.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex(hole.getsockname())
            urls.append(f"http://127.0.0.1:{hole.getsockname()[1]}")

        async def work(client: aio.Client) -> None:
            async def one(number: int) -> None:
                with pytest.raises(ringfence.Unavailable):
                    await client.lock(f"k/{number}", wait=0).acquire()

            # One after the other, each would take a second.
            await asyncio.wait_for(asyncio.gather(*map(one, range(100))), SOON)

        run(work, urls)


def serve(asked: Asked) -> None:
    if asked.path == "/v1/batch":
        answer(asked)
    elif asked.path == "/v1/renew":
        asked.renew_all()
    elif asked.method == "DELETE":
        asked.answer(204)
    else:
        asked.grant()


def test_an_acquire_and_a_lead_go_on_when_all_other_tasks_are_cancelled(
    background: Background, node: Played
) -> None:
    async def work(client: aio.Client) -> None:
        async def lead(lease: aio.Lease) -> int:
            return lease.token

        mine = {
            asyncio.create_task(client.lock("a").acquire()),
            asyncio.create_task(client.lead("b", lead)),
        }
        batch = await asyncio.to_thread(node.receive, "POST", "/v1/batch")
        for task in asyncio.all_tasks() - mine - {asyncio.current_task()}:  # type: ignore[operator]
            task.cancel()
        assert await asyncio.to_thread(batch.is_closed)
        while not all(task.done() for task in mine):
            await asyncio.sleep(0.01)
            if not node.is_quiet():
                serve(node.receive())
        for task in mine:
            if isinstance(lease := task.result(), aio.Lease):
                lease.into_id()

    begin(background, node, work).result(SOON)
