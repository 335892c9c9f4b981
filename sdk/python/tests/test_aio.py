"""The client for asyncio, against real and played nodes."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from cluster import SOON, Cluster, until
from conftest import JumpingClock
from played import Background, Played

import ringfence
from ringfence import State, aio


def run(work: Callable[[aio.Client], Coroutine[Any, Any, Any]], urls: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with aio.Client(urls, **options) as client:
            return await work(client)

    return asyncio.run(main(), debug=True)


async def sleep_until_cancelled() -> None:
    await asyncio.sleep(SOON)
    pytest.fail("nobody cancelled it")


def test_tasks_that_share_a_lock_exclude_each_other(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> list[int]:
        lock, inside, tokens = client.lock("aio/shared-lock", ttl=5), [], []

        async def one() -> None:
            async with lock as lease:
                inside.append(1)
                await asyncio.sleep(0)
                assert len(inside) == 1
                tokens.append(lease.token)
                inside.pop()

        await asyncio.gather(*(one() for _ in range(24)))
        return tokens

    tokens = run(work, cluster.urls)
    assert tokens == sorted(set(tokens))


def test_the_body_is_cancelled_when_the_lease_is_lost_and_the_block_raises_lost(cluster: Cluster) -> None:
    ended: list[str] = []

    async def work(client: aio.Client) -> None:
        with pytest.raises(ringfence.Lost) as error:
            async with client.lock("aio/lost", max_hold=0.3) as lease:
                try:
                    await sleep_until_cancelled()
                finally:
                    ended.append(lease.state.value)
                    await asyncio.sleep(0)
                    ended.append("cleaned up")
        assert error.value.reason == "max-hold"
        # Nothing of the cancellation is left.
        await asyncio.sleep(0.001)

    run(work, cluster.urls)
    assert ended == ["lost", "cleaned up"]
    assert cluster.holders("aio/lost") == []


def test_an_error_of_the_body_is_not_masked(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        with pytest.raises(KeyError):
            async with client.lock("aio/error", max_hold=0.2):
                try:
                    await sleep_until_cancelled()
                except asyncio.CancelledError:
                    raise KeyError from None
        with pytest.raises(KeyError):
            async with client.lock("aio/error"):
                raise KeyError
        await asyncio.sleep(0.001)

    run(work, cluster.urls)


def test_the_callers_cancellation_stays_one_and_the_lease_is_released(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        entered = asyncio.Event()

        async def body() -> None:
            async with client.lock("aio/cancelled", ttl=600):
                entered.set()
                await sleep_until_cancelled()

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        (await client.lock("aio/cancelled").try_acquire()).token  # noqa: B018

    run(work, cluster.urls)


def test_whoever_is_cancelled_while_it_waits_leaves_the_queue(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        async with client.lock("aio/queue"):
            waiting = asyncio.create_task(client.lock("aio/queue").acquire())
            while not await asyncio.to_thread(cluster.waiters, "aio/queue"):
                pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while await asyncio.to_thread(cluster.waiters, "aio/queue"):
                pass

    run(work, cluster.urls)


def test_a_loop_that_was_blocked_finds_the_lease_lost_and_is_told(cluster: Cluster) -> None:
    told: list[Any] = []

    async def work(client: aio.Client) -> None:
        with pytest.raises(ringfence.Lost):
            async with client.lock("aio/blocked", ttl=2, on_lost=told.append) as lease:
                time.sleep(2)
                assert lease.state is State.LOST, "whatever tasks ran"
                with pytest.raises(ringfence.Lost):
                    lease.check()
                await sleep_until_cancelled()
        assert told == [lease]

    run(work, cluster.urls)


def test_a_call_on_another_loop_is_an_error_at_once(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        (await client.lock("aio/wrong").acquire()).into_id()

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(client.lock("aio/wrong").acquire())

        await asyncio.to_thread(elsewhere)
        [holder] = cluster.holders("aio/wrong")
        cluster.revoke("aio/wrong", holder["token"])

    run(work, cluster.urls)


def test_a_client_is_used_again_by_a_later_loop(cluster: Cluster) -> None:
    def use() -> None:
        client = aio.Client(cluster.urls)

        async def work() -> None:
            async with client.lock("aio/loops"):
                pass

        asyncio.run(work())
        asyncio.run(work())
        asyncio.run(client.close())
        with pytest.raises(ringfence.Closed):
            asyncio.run(work())

    with warnings.catch_warnings():
        # Of the connections that the loops have left behind.
        warnings.simplefilter("ignore")
        use()
        gc.collect()


def test_who_leads_is_cancelled_and_elected_anew(cluster: Cluster) -> None:
    ended: list[int] = []

    async def work(client: aio.Client) -> None:
        async def lead(lease: aio.Lease) -> str:
            try:
                if not ended:
                    await sleep_until_cancelled()
            finally:
                ended.append(lease.token)
            return "done"

        assert await client.lead("aio/leader", lead, max_hold=0.3) == "done"

    run(work, cluster.urls)
    assert ended[0] < ended[1]


def test_closing_ends_what_waits_and_releases_what_is_held(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        lease = await client.lock("aio/closing", ttl=600).acquire()
        waiting = asyncio.create_task(client.lock("aio/closing").acquire())
        while not await asyncio.to_thread(cluster.waiters, "aio/closing"):
            pass
        await client.close()
        with pytest.raises(ringfence.Closed):
            await waiting
        assert await lease.wait_lost() == "released"
        await lease.release()

    run(work, cluster.urls)
    assert (cluster.holders("aio/closing"), cluster.waiters("aio/closing")) == ([], 0)


def test_a_cancellation_that_races_the_grant_gives_it_back(background: Background, node: Played) -> None:
    async def work(client: aio.Client) -> str:
        call = asyncio.create_task(client.lock("a", wait=0).acquire())
        asked = await asyncio.to_thread(node.receive, "PUT")
        asked.grant()
        # The answer is there, and nobody has read it.
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        deleted = await asyncio.to_thread(node.receive, "DELETE")
        assert deleted.path == asked.path
        deleted.answer(204)
        return "given back"

    assert background(lambda: run(work, node.url)).result(SOON) == "given back"


def test_a_cancelled_release_goes_on(background: Background, node: Played) -> None:
    async def work(client: aio.Client) -> None:
        call = asyncio.create_task(client.lock("a").acquire())
        (await asyncio.to_thread(node.receive, "PUT")).grant()
        lease = await call
        release = asyncio.create_task(lease.release())
        asked = await asyncio.to_thread(node.receive, "DELETE")
        release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
        asked.drop()
        again = await asyncio.to_thread(node.receive, "DELETE")
        assert again.path == asked.path
        again.answer(204)

    background(lambda: run(work, node.url)).result(SOON)
    assert node.is_quiet()


def test_the_body_is_told_by_its_clock_before_the_successor(cluster: Cluster, clock: JumpingClock) -> None:
    async def work(client: aio.Client) -> None:
        with pytest.raises(ringfence.Lost):
            async with client.lock("aio/jump", ttl=60) as lease:
                clock.jump(60)
                assert await lease.wait_lost() == "unconfirmed"
                assert cluster.holders("aio/jump") != []
                await sleep_until_cancelled()

    run(work, cluster.urls, clock=clock)
    until(lambda: cluster.holders("aio/jump") == [], "it is released")
