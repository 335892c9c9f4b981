"""What programs do to tasks that they do not know, and to those of this client: the leases stay as they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine
from typing import Any

import pytest
from cluster import SOON, Cluster
from played import Background, Played, renewal
from test_handles import is_free, run
from test_process import rest, start

import ringfence
from ringfence import State, aio


def cancel_all() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # type: ignore[union-attr]


def test_a_program_that_cancels_all_other_tasks_goes_on_with_its_leases(cluster: Cluster) -> None:
    """Once, that ended what renews them and what ends them, for good: the body went on under a lease that another had."""

    async def work(client: aio.Client) -> None:
        async with client.lock("tasks/all", ttl=6) as lease:
            for _ in range(3):
                renewed = renewal(lease)
                cancel_all()
                while not renewed():
                    await asyncio.sleep(0.01)
            assert lease.state is State.HELD
            dropped = await client.lock("tasks/dropped", ttl=600).acquire()
            release = asyncio.create_task((await client.lock("tasks/released", ttl=600).acquire()).release())
            del dropped
            await asyncio.sleep(0)
            cancel_all()
            with contextlib.suppress(asyncio.CancelledError):
                await release
            for key in ("tasks/dropped", "tasks/released"):
                while await asyncio.to_thread(cluster.holders, key):
                    await asyncio.sleep(0)
            lease_id = lease.lease_id
        assert lease_id
        # The loss is told, too.
        with pytest.raises(ringfence.Lost):
            async with client.lock("tasks/told", max_hold=0.3):
                cancel_all()
                await asyncio.sleep(SOON)

    run(work, cluster.urls)


def test_a_program_that_cancels_all_tasks_and_ends_has_released(cluster: Cluster) -> None:
    script = """
import asyncio, gc
async def main():
    c = ringfence.aio.Client(URLS)
    kept = await c.lock("tasks/end/kept", ttl=1).acquire()
    lease = await c.lock("tasks/end", ttl=600).acquire()
    for task in asyncio.all_tasks() - {asyncio.current_task()}: task.cancel()
    # What renews has begun again, and so has a thread that the loop waits for.
    await asyncio.sleep(0.7)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 1)
    del lease
    gc.collect()
asyncio.run(main())
"""
    assert rest(start(cluster, script.replace("URLS", repr(cluster.urls)))) == ""
    assert cluster.holders("tasks/end") == []
    assert cluster.holders("tasks/end/kept") == []


def test_whoever_works_under_a_lease_is_told_when_the_client_is_closed(cluster: Cluster) -> None:
    """Once, `close` gave the key to another, and the body went on, and succeeded."""

    async def work(client: aio.Client) -> list[str]:
        told: list[str] = []
        entered = asyncio.Event()

        async def body() -> None:
            async with client.lock("tasks/closed", ttl=600, on_lost=lambda lease: told.append("callback")):
                entered.set()
                try:
                    await asyncio.sleep(SOON)
                finally:
                    told.append("body")

        task = asyncio.create_task(body())
        await entered.wait()
        kept = await client.lock("tasks/kept", ttl=600).acquire()
        assert await client.close() == 0
        with pytest.raises(ringfence.Lost) as error:
            await task
        assert error.value.reason == kept.lost_reason == "released"
        await kept.release()
        return told

    assert run(work, cluster.urls) == ["body", "callback"]

    async def by_the_body(client: aio.Client) -> None:
        with pytest.raises(ringfence.Lost):
            async with client.lock("tasks/closed", ttl=600):
                assert await client.close() == 0

    run(by_the_body, cluster.urls)
    told: list[Any] = []
    client = ringfence.Client(cluster.urls)
    with pytest.raises(ringfence.Lost), client.lock("tasks/closed", ttl=600, on_lost=told.append) as lease:
        client.close()
        with pytest.raises(ringfence.Lost):
            lease.check()
    assert lease.wait_lost() == "released"
    lease.release()
    is_free(cluster, "tasks/closed")


def test_a_lease_that_its_release_finds_lost_is_told(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> list[Any]:
        told: list[Any] = []
        lease = await client.lock("tasks/found", ttl=600, on_lost=told.append).acquire()
        lease._held.lose("revoked")
        with pytest.raises(ringfence.Lost, match="revoked"):
            await lease.release()
        await asyncio.sleep(0)
        assert told == [lease]
        return told

    run(work, cluster.urls)


def test_the_body_that_wait_for_has_entered_is_cancelled(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, the task was bound that `wait_for` makes before Python 3.12, which ends when the block is entered."""

    async def work(client: aio.Client) -> None:
        for enters in (
            lambda: client.lock("tasks/wait-for", max_hold=0.3),
            lambda: lease_of(client),
        ):
            manager: Any = enters()
            if isinstance(manager, Coroutine):
                manager = await manager
            await asyncio.wait_for(manager.__aenter__(), SOON)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(SOON)
            with pytest.raises(ringfence.Lost):
                await manager.__aexit__(None, None, None)

    async def lease_of(client: aio.Client) -> aio.Lease:
        return await client.lock("tasks/wait-for", max_hold=0.3).acquire()

    run(work, cluster.urls)

    async def elsewhere(client: aio.Client) -> None:
        lock = client.lock("tasks/elsewhere", max_hold=0.3)

        async def enter() -> aio.Lease:
            return await lock.__aenter__()

        lease = await asyncio.create_task(enter())
        await lease.wait_lost()
        with pytest.raises(ringfence.Lost):
            await lock.__aexit__(None, None, None)

    with caplog.at_level(logging.WARNING):
        run(elsewhere, cluster.urls)
    assert "nobody could be cancelled" in caplog.text


def test_a_cancelled_block_leaves_within_a_second_in_an_outage(background: Background, node: Played) -> None:
    """Once, it waited for five: as long as a release is repeated before somebody is told."""

    async def work(client: aio.Client) -> float:
        entered = asyncio.Event()

        async def body() -> None:
            async with client.lock("a", ttl=600):
                entered.set()
                await asyncio.sleep(SOON)

        task = asyncio.create_task(body())
        (await asyncio.to_thread(node.receive, "PUT")).grant()
        await entered.wait()
        node.hangs = True
        begun = asyncio.get_running_loop().time()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        took = asyncio.get_running_loop().time() - begun
        await client.close(0.1)
        return took

    assert background(lambda: run(work, node.url)).result(SOON) < 3


def test_a_grant_that_comes_with_a_second_cancellation_is_given_back(
    background: Background, node: Played
) -> None:
    async def work(client: aio.Client) -> None:
        engine: Any = client._on_loop()
        real = engine._acquire

        async def granted(spec: Any) -> Any:
            # As if the grant came in the moment of each cancellation.
            acquire = asyncio.ensure_future(real(spec))
            while not acquire.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({acquire})
            return acquire.result()

        engine._acquire = granted
        acquiring = asyncio.create_task(client.lock("a", wait=0).acquire())
        asked = await asyncio.to_thread(node.receive, "PUT")
        acquiring.cancel()
        await asyncio.sleep(0)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        asked.grant()
        deleted = await asyncio.to_thread(node.receive, "DELETE")
        assert deleted.path == asked.path
        deleted.answer(204)

    background(lambda: run(work, node.url)).result(SOON)


def test_a_child_that_is_forked_during_an_acquire_does_not_have_the_lease(
    background: Background, node: Played
) -> None:
    """Once, the child's answer made a lease of its own, with the id of the parent's."""

    async def main() -> None:
        client = aio.Client(node.url)
        acquiring = asyncio.create_task(client.lock("a", ttl=600).acquire())
        asked = await asyncio.to_thread(node.receive, "PUT")
        child = os.fork()
        if child == 0:
            code = 2
            try:
                lease = await acquiring
                code = 0 if lease.lost_reason == "forked" and lease.state is State.LOST else 1
            finally:
                os._exit(code)
        # The child reads the answer, as this loop stands still.
        asked.grant()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        again = await asyncio.to_thread(node.receive, "PUT")
        assert again.path == asked.path
        again.grant()
        lease = await acquiring
        assert lease.state is State.HELD
        release = asyncio.create_task(lease.release())
        (await asyncio.to_thread(node.receive, "DELETE")).answer(204)
        await release
        await client.close()

    background(lambda: asyncio.run(main())).result(SOON)
