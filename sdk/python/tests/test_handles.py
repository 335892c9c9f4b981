"""Handles of leases: left by another thread or task than entered them, in signal handlers, dropped, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster import SOON, Cluster, until
from played import Background, Played, granted, released, renewal

import ringfence
from ringfence import State, aio
from ringfence._signal import Flag


def in_a_thread(work: Callable[[], Any]) -> Any:
    """On a thread that has done nothing before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(SOON)


def run(work: Callable[[aio.Client], Coroutine[Any, Any, Any]], urls: Any) -> Any:
    async def main() -> Any:
        async with aio.Client(urls) as client:
            return await work(client)

    return asyncio.run(main(), debug=True)


def is_free(cluster: Cluster, key: str) -> None:
    until(lambda: cluster.holders(key) == [], "it is released")


def test_a_generator_that_another_thread_ends_has_released(
    cluster: Cluster, client: ringfence.Client
) -> None:
    # As frameworks take what a request depends on.
    lock = client.lock("handles/generator", ttl=5)

    def depends() -> Iterator[ringfence.Lease]:
        with lock as lease:
            yield lease

    for _ in range(3):
        generator = depends()
        lease = in_a_thread(lambda generator=generator: next(generator))  # type: ignore[misc]
        assert lease.state is State.HELD
        in_a_thread(generator.close)
        assert lease.state is State.RELEASED
        assert cluster.holders("handles/generator") == []


def test_of_several_open_blocks_each_releases_its_own(client: ringfence.Client) -> None:
    lock = client.lock("handles/several", ttl=5, limit=3)

    def depends() -> Iterator[ringfence.Lease]:
        with lock as lease:
            yield lease

    generators = [depends() for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        leases = [pool.submit(next, generator).result(SOON) for generator in generators]
    # All by one thread, in the order of entry, which would have the wrong ones released.
    for number, generator in enumerate(generators):
        generator.close()
        assert [lease.state is State.RELEASED for lease in leases] == [n <= number for n in range(3)]


def test_an_exit_stack_that_another_thread_closes_has_released(
    cluster: Cluster, client: ringfence.Client
) -> None:
    stack = contextlib.ExitStack()
    in_a_thread(lambda: stack.enter_context(client.lock("handles/stack", ttl=5)))
    in_a_thread(stack.close)
    assert cluster.holders("handles/stack") == []


def test_a_block_that_is_left_at_another_place_takes_no_lease_from_another_thread(
    client: ringfence.Client,
) -> None:
    """Once, a function that entered by hand had a frame with the number of an earlier one, and the other thread lost its lease."""
    lock = client.lock("handles/places", ttl=5, limit=4)
    stacks = [contextlib.ExitStack() for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        leases = [pool.submit(lock.__enter__).result(SOON) for _ in range(2)]
        leases += [pool.submit(stack.enter_context, lock).result(SOON) for stack in stacks]
    with pytest.raises(RuntimeError, match="several blocks"):
        lock.__exit__(None, None, None)
    assert [lease.state for lease in leases] == [State.HELD] * 4
    # Each stack knows its own, in any order.
    for stack, lease in zip(stacks, leases[2:], strict=True):
        stack.close()
        assert lease.state is State.RELEASED
    assert [lease.state for lease in leases[:2]] == [State.HELD] * 2
    for lease in leases[:2]:
        lease.release()


def test_a_lock_that_was_not_entered_is_not_left(client: ringfence.Client) -> None:
    with pytest.raises(RuntimeError, match="not entered"):
        client.lock("handles/not-entered").__exit__(None, None, None)


def test_a_block_that_another_task_ends_has_released(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        lock = client.lock("handles/tasks", ttl=5)
        stack = contextlib.AsyncExitStack()
        await asyncio.create_task(stack.enter_async_context(lock))
        await asyncio.create_task(stack.aclose())
        assert await asyncio.to_thread(cluster.holders, "handles/tasks") == []

        async def fixture() -> AsyncIterator[aio.Lease]:
            async with lock as lease:
                yield lease

        generator = fixture()
        lease = await asyncio.create_task(anext(generator))
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(anext(generator))
        assert lease.state is State.RELEASED

    run(work, cluster.urls)


def test_an_async_generator_that_is_left_by_break_has_released(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        async def leases() -> AsyncIterator[aio.Lease]:
            async with client.lock("handles/break", ttl=600) as lease:
                yield lease

        async for _ in leases():
            break
        while await asyncio.to_thread(cluster.holders, "handles/break"):
            await asyncio.sleep(0)

    run(work, cluster.urls)


def test_a_dropped_lease_is_reported_also_if_it_was_entered(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node)
    lease_id = lease.lease_id
    with pytest.warns(ResourceWarning, match="'a' was dropped without a release"):
        del lease
    released(node.receive("DELETE"), lease_id)
    lease = granted(background, client, node).__enter__()
    lease_id = lease.lease_id
    with pytest.warns(ResourceWarning, match="'a' was dropped"):
        del lease
    released(node.receive("DELETE"), lease_id)
    lease = granted(background, client, node)
    release = background(lease.release)
    released(node.receive("DELETE"), lease.lease_id)
    release.result(SOON)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del lease


def test_a_release_that_is_interrupted_before_it_begins_is_done_whoever_keeps_the_handle(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with ringfence.Client(cluster.urls) as client:
        lease = client.lock("handles/interrupted", ttl=600).acquire()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(lease._runner, "begin", interrupted)
            lease.release()
        is_free(cluster, "handles/interrupted")
        assert lease.lost_reason == "released"


def test_an_entered_lease_of_asyncio_that_is_dropped_is_released(cluster: Cluster) -> None:
    async def work(client: aio.Client) -> None:
        lease = await client.lock("handles/dropped", ttl=600).acquire()
        await lease.__aenter__()
        with pytest.warns(ResourceWarning, match="was dropped"):
            del lease
        while await asyncio.to_thread(cluster.holders, "handles/dropped"):
            await asyncio.sleep(0)

    run(work, cluster.urls)


def test_a_dropped_lease_is_released_also_if_its_callback_belongs_to_its_owner(cluster: Cluster) -> None:
    """Once, what keeps leases had the callback, so the owner, so the lease: it was renewed for the life of the process."""

    class Owner:
        lease: Any = None

        def lost(self, lease: Any) -> None:
            pytest.fail("it was released")

    with ringfence.Client(cluster.urls) as client:
        owner = Owner()
        owner.lease = client.lock("handles/owner", ttl=600, on_lost=owner.lost).acquire()
        del owner
        gc.collect()
        is_free(cluster, "handles/owner")

    async def work(client: aio.Client) -> None:
        owner = Owner()
        owner.lease = await client.lock("handles/owner", ttl=600, on_lost=owner.lost).acquire()
        del owner
        gc.collect()
        while await asyncio.to_thread(cluster.holders, "handles/owner"):
            await asyncio.sleep(0)

    run(work, cluster.urls)


def test_a_callback_that_fails_or_blocks_stops_neither_the_body_nor_others(cluster: Cluster) -> None:
    order: list[str] = []

    def fails(lease: aio.Lease) -> None:
        order.append("callback")
        raise ZeroDivisionError

    async def work(client: aio.Client) -> None:
        with pytest.raises(ringfence.Lost):
            async with client.lock("handles/callback", max_hold=0.3, on_lost=fails):
                try:
                    await asyncio.sleep(SOON)
                finally:
                    order.append("body")

    run(work, cluster.urls)
    assert order == ["body", "callback"]
    blocked = threading.Event()

    def blocks(lease: ringfence.Lease) -> None:
        blocked.set()
        threading.Event().wait()

    with ringfence.Client(cluster.urls) as client:
        lease = client.lock("handles/blocks", max_hold=0.3, on_lost=blocks).acquire()
        other = client.lock("handles/other", ttl=6).acquire()
        assert blocked.wait(SOON)
        until(renewal(other), "others are renewed")
        with pytest.raises(ringfence.Lost):
            lease.release()
        other.release()


def test_a_call_is_bounded_by_its_timeout(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)

    def timed_out(call: Callable[[], Any]) -> None:
        with pytest.raises(ringfence.TimedOut) as error:
            call()
        assert error.value.reason == "timeout"

    timed_out(lambda: client.lock("a").acquire(timeout=0.3))
    put = node.receive("PUT")
    released(node.receive("DELETE"), put.lease_id)
    timed_out(lambda: client.lock("a").try_acquire(timeout=0.3))
    put = node.receive("PUT")
    released(node.receive("DELETE"), put.lease_id)
    lease = granted(background, client, node)
    timed_out(lambda: lease.renew(timeout=0.3))
    node.receive("POST", "/renew").drop()
    assert lease.state is State.HELD
    timed_out(lambda: lease.release(timeout=0.3))
    asked = node.receive("DELETE")
    assert lease.state is State.RELEASED
    asked.drop()
    released(node.receive("DELETE"), lease.lease_id)
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(ringfence.Invalid, match="timeout"):
            client.lock("a").acquire(timeout=wrong)  # type: ignore[arg-type]
        with pytest.raises(ringfence.Invalid, match="timeout"):
            lease.wait_lost(wrong)  # type: ignore[arg-type]


def test_a_race_is_left_by_a_stop(cluster: Cluster, client: ringfence.Client) -> None:
    stop = threading.Event()

    def work(lease: ringfence.Lease) -> str:
        pytest.fail("another leads")

    with client.lock("handles/leader"), ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lambda: client.lead("handles/leader", work, stop=stop))
        until(lambda: cluster.waiters("handles/leader"), "it waits")
        stop.set()
        assert leading.result(SOON) is None
        until(lambda: not cluster.waiters("handles/leader"), "it left the queue")


def test_who_leads_no_longer_may_fail_and_leads_again(cluster: Cluster, client: ringfence.Client) -> None:
    reported: list[Exception] = []

    def work(lease: ringfence.Lease) -> str:
        if not reported:
            assert lease.wait_lost(SOON) == "max-hold"
            raise ConnectionError("the rollback failed, too")
        if len(reported) == 1:
            raise ringfence.Stale("the guard knew first")
        return "done"

    assert client.lead("handles/fails", work, max_hold=0.3, on_error=reported.append) == "done"
    assert [type(error) for error in reported] == [ConnectionError, ringfence.Stale]


def test_close_says_what_it_left(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node)
    begun = time.monotonic()
    close = background(lambda: client.close(0.5))
    node.receive("DELETE")
    assert close.result(SOON) == 1
    assert time.monotonic() - begun >= 0.4
    assert lease.state is State.RELEASED


def test_close_says_what_it_left_if_it_has_no_answer(background: Background, node: Played) -> None:
    """Once, `close` said that nothing was left, although the client's thread did not run."""
    client = ringfence.Client(node.url)
    lease = granted(background, client, node, ttl=600)
    go_on = threading.Event()
    client._runner().call_soon(go_on.wait)
    assert client.close(0.1) == 1
    go_on.set()
    released(node.receive(), lease.lease_id)
    assert client.close(SOON) == 0


def test_who_closes_a_client_once_more_waits_for_the_first(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node, ttl=600)
    first = background(lambda: client.close(0.5))
    node.receive("DELETE")
    assert client.close(SOON) == 1
    assert first.result(SOON) == 1
    assert lease.state is State.RELEASED

    async def work(client: aio.Client) -> list[int]:
        lease = await client.lock("a").acquire()
        found = await asyncio.gather(client.close(0.5), client.close(0), client.close())
        assert lease.state is State.RELEASED
        return [*found, await client.close()]

    call = background(lambda: run(work, node.url))
    while (asked := node.receive()).method != "PUT":
        pass
    asked.grant()
    assert call.result(SOON) == [1] * 4


def test_what_is_left_while_a_client_closes_is_never_nothing(background: Background, node: Played) -> None:
    """Once, it was nothing for a few turns of the loop: ended releases no longer counted, and did not count as left yet."""

    async def work(client: aio.Client) -> set[int]:
        leases = [await client.lock("a").acquire(), await client.lock("b", hold_at_least=60).acquire()]
        closing = asyncio.create_task(client.close(0.1))
        found = {client._engine.left()}
        while not closing.done():
            await asyncio.sleep(0)
            found.add(client._engine.left())
        assert len(leases) == 2
        return found | {await closing}

    call = background(lambda: run(work, node.url))
    for _ in range(2):
        node.receive("PUT").grant()
    assert call.result(SOON) == {2}


def test_close_and_a_dropped_handle_keep_hold_at_least(cluster: Cluster) -> None:
    """Once, both gave the key away at once: a job ran twice."""
    hold = 6.0

    def held_for(begun: float, key: str) -> None:
        assert cluster.holders(key) or time.monotonic() - begun >= hold, f"{key} is free too soon"
        is_free(cluster, key)
        assert time.monotonic() - begun >= hold - 0.1

    begun = time.monotonic()
    with ringfence.Client(cluster.urls) as client:
        client.lock("handles/hold-closed", ttl=3, hold_at_least=hold).acquire()
    held_for(begun, "handles/hold-closed")
    with ringfence.Client(cluster.urls) as client:
        begun = time.monotonic()
        lease = client.lock("handles/hold-dropped", ttl=3, hold_at_least=hold).acquire()
        del lease
        held_for(begun, "handles/hold-dropped")


def test_a_finalizer_on_the_thread_of_a_client_waits_for_nothing(cluster: Cluster) -> None:
    """Once, the collector ran there, an object closed its client, and nothing was renewed until that gave up."""

    class Owner:
        def __init__(self, key: str) -> None:
            self.client = ringfence.Client(cluster.urls)
            self.closed = self.client.lock(f"{key}/closed", ttl=600).acquire()
            self.other = busy.lock(f"{key}/released", ttl=600).acquire()
            self.itself = self

        def __del__(self) -> None:
            self.other.release()
            self.client.close()
            ended.set()

    ended = threading.Event()
    with ringfence.Client(cluster.urls) as busy:
        lease = busy.lock("handles/busy", ttl=6).acquire()
        gc.collect()
        Owner("handles/finalizer")
        busy._runner().call_soon(gc.collect)
        assert ended.wait(SOON), "it waits"
        is_free(cluster, "handles/finalizer/closed")
        is_free(cluster, "handles/finalizer/released")
        until(renewal(lease), "it is renewed")


def test_a_grant_that_comes_with_an_interrupt_is_given_back_whoever_keeps_the_traceback(
    cluster: Cluster, client: ringfence.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the lease lived as long as the traceback, and its end was reported as a leak."""
    client.lock("handles/instant").acquire().release()
    wait = Flag.wait

    def interrupted(flag: Flag, seconds: float | None = None) -> bool:
        wait(flag, seconds)
        raise KeyboardInterrupt

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
            patch.setattr(Flag, "wait", interrupted)
            client.lock("handles/instant", ttl=600).acquire()
        is_free(cluster, "handles/instant")
        assert kept.tb is not None
    assert [one for one in warned if "dropped" in str(one.message)] == []


def test_whoever_waits_for_long_is_told_for_whom(
    cluster: Cluster,
    client: ringfence.Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringfence._acquire._TELLS_AFTER", 0.1)
    lock = client.lock("handles/nested", holder="me", wait=SOON)
    with ringfence.Client(cluster.urls) as other, ThreadPoolExecutor(2) as pool, lock as lease:
        told = f"waits for 'handles/nested', which is held by me with token {lease.token}"
        nested = pool.submit(lock.acquire)
        until(lambda: f"{told}, which this client itself holds" in caplog.messages, "it is told")
        waiting = pool.submit(other.lock("handles/nested", wait=SOON).acquire)
        until(lambda: told in caplog.messages, "another is told")
        lease.release()
        nested.result(SOON).release()
        waiting.result(SOON).release()
    assert len(caplog.messages) == 2


def test_a_lock_decorates_a_function_and_a_key_tells_its_holders(
    cluster: Cluster, client: ringfence.Client
) -> None:
    @client.lock("handles/decorated", holder="me")
    def work(number: int) -> int:
        """Works."""
        [holder] = client.holders("handles/decorated")
        assert (holder.key, holder.holder) == ("handles/decorated", "me")
        return number + 1

    assert (work(1), work.__doc__) == (2, "Works.")
    assert client.holders("handles/decorated") == []

    async def asynchronous(client: aio.Client) -> int:
        @client.lock("handles/decorated")
        async def work(number: int) -> int:
            assert len(await client.holders("handles/decorated")) == 1
            return number + 1

        return await asyncio.create_task(work(2))

    assert run(asynchronous, cluster.urls) == 3


def test_calls_that_begin_while_the_client_closes_end(cluster: Cluster) -> None:
    for _ in range(20):
        client = ringfence.Client(cluster.urls)
        client.lock("handles/closing").acquire().release()
        begun = threading.Barrier(9)

        def call(client: ringfence.Client = client, begun: threading.Barrier = begun) -> None:
            begun.wait()
            with contextlib.suppress(ringfence.Closed):
                while True:
                    client.lock("handles/closing", wait=0).acquire(timeout=None).release()

        def one() -> None:
            with contextlib.suppress(ringfence.Held):
                call()

        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(one) for _ in range(8)]
            begun.wait()
            client.close()
            for one_call in calls:
                one_call.result(SOON)
