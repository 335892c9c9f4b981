"""redis-py: its lock, and the same for asyncio."""

import threading

import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, ResponseError, WatchError
from steps import HOST, ON_RINGFENCE, PORT, is_refused, play, raises, revoke, token, until

client = redis.Redis(HOST, PORT, client_name="acceptance")


def connects_with_each_protocol(key):
    for protocol in (2, 3):
        with redis.Redis(HOST, PORT, protocol=protocol, decode_responses=True) as one:
            assert one.ping()
            assert one.set(key, f"by {protocol}", nx=True, px=10_000)
            assert one.get(key) == f"by {protocol}"
            assert one.delete(key) == 1


def acquires_and_releases(key):
    lock = client.lock(key, timeout=10)
    assert not lock.locked() and not lock.owned()
    assert lock.acquire(blocking=False) and lock.locked() and lock.owned()
    assert 8_000 < client.pttl(key) <= 10_000
    lock.release()
    assert not lock.locked() and not lock.owned()
    assert client.pttl(key) == -2


def a_second_one_is_refused(key):
    first, second = client.lock(key, timeout=10), client.lock(key, timeout=10)
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False) and not second.owned()
    first.release()
    assert second.acquire(blocking=False) and not first.owned()
    second.release()


def the_same_value_twice_is_refused(key):
    lock = client.lock(key, timeout=10)
    assert lock.acquire(blocking=False, token="same")
    assert not client.lock(key, timeout=10).acquire(blocking=False, token="same")
    lock.release()
    assert lock.acquire(blocking=False, token="same"), "after the release it is free"
    lock.release()


def a_late_release_spares_the_newer_holder(key):
    late, newer = client.lock(key, timeout=0.3), client.lock(key, timeout=10)
    assert late.acquire(blocking=False)
    until(lambda: newer.acquire(blocking=False), "the end of the lock")
    raises(LockNotOwnedError, late.release)
    assert newer.owned()
    newer.release()


def extend_adds_or_replaces(key):
    lock = client.lock(key, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(10) and 17_000 < client.pttl(key) <= 20_000
    assert lock.extend(5, replace_ttl=True) and client.pttl(key) <= 5_000
    assert lock.reacquire() and 8_000 < client.pttl(key) <= 10_000
    lock.release()
    raises(LockError, lambda: lock.extend(10))


def a_lost_lock_cannot_be_extended(key):
    lock = client.lock(key, timeout=0.2)
    assert lock.acquire(blocking=False)
    until(lambda: not lock.owned(), "the end of the lock")
    raises(LockNotOwnedError, lambda: lock.extend(10))
    raises(LockNotOwnedError, lock.reacquire)


def a_waiter_gets_it_next(key):
    lock, got = client.lock(key, timeout=10), threading.Event()

    def wait():
        with client.lock(key, timeout=10, sleep=0.02, blocking_timeout=20):
            got.set()

    assert lock.acquire(blocking=False)
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    assert not got.wait(0.2)
    lock.release()
    assert got.wait(20)
    waiter.join()


def one_at_a_time(key):
    inside, most, failed = [], [], []

    def work():
        try:
            for _ in range(5):
                with client.lock(key, timeout=20, sleep=0.005):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed
    assert len(most) == 40 and max(most) == 1


def without_a_timeout(key):
    lock = client.lock(key)
    if ON_RINGFENCE:
        is_refused(raises(ResponseError, lambda: lock.acquire(blocking=False)))
        assert client.get(key) is None
    else:
        assert lock.acquire(blocking=False) and client.ttl(key) == -1
        lock.release()


def a_transaction_deletes_its_own(key):
    assert client.set(key, "mine", nx=True, ex=10)

    def delete(value):
        with client.pipeline() as pipe:
            pipe.watch(key)
            if pipe.get(key) != value:
                return 0
            pipe.multi()
            pipe.delete(key)
            return pipe.execute()[0]

    assert delete(b"another's") == 0 and delete(b"mine") == 1

    assert client.set(key, "mine", nx=True, ex=10)
    with client.pipeline() as pipe:
        pipe.watch(key)
        assert client.delete(key) == 1 and client.set(key, "another's", nx=True, ex=10)
        pipe.multi()
        pipe.delete(key)
        raises(WatchError, pipe.execute)
    assert client.get(key) == b"another's"


def a_grant_has_a_larger_token(key):
    first, second = client.lock(key, timeout=10), client.lock(key, timeout=10)
    assert first.acquire(blocking=False)
    one = token(client, key, first.local.token)
    assert first.extend(10) and token(client, key, first.local.token) == one, "an extended lock keeps its token"
    first.release()
    assert second.acquire(blocking=False)
    assert client.execute_command("RINGFENCE.TOKEN", key, "of another") is None
    assert token(client, key, second.local.token) > one
    assert int(client.hget(f"ringfence:{{{key}}}", "token")) == token(client, key, second.local.token)
    second.release()


def a_revoked_lock_is_lost(key):
    lock = client.lock(key, timeout=10)
    assert lock.acquire(blocking=False)
    revoke(key, token(client, key, lock.local.token))
    assert not lock.owned()
    raises(LockNotOwnedError, lock.release)


async def asyncio_acquires_extends_and_releases(key):
    async with redis.asyncio.Redis(host=HOST, port=PORT) as one:
        first, second = one.lock(key, timeout=10), one.lock(key, timeout=10, sleep=0.02)
        assert await first.acquire(blocking=False) and await first.owned()
        assert not await second.acquire(blocking=False)
        assert await first.extend(10) and 17_000 < await one.pttl(key) <= 20_000
        assert await first.reacquire()
        await first.release()
        async with second:
            assert await second.owned()
        assert not await second.locked()


async def asyncio_late_release_spares_the_newer_holder(key):
    async with redis.asyncio.Redis(host=HOST, port=PORT) as one:
        late, newer = one.lock(key, timeout=0.3), one.lock(key, timeout=10, sleep=0.02)
        assert await late.acquire(blocking=False)
        assert await newer.acquire(blocking_timeout=20)
        try:
            await late.release()
        except LockNotOwnedError:
            pass
        else:
            raise AssertionError("the late release did not raise")
        assert await newer.owned()
        await newer.release()


play(
    "redis",
    connects_with_each_protocol,
    acquires_and_releases,
    a_second_one_is_refused,
    the_same_value_twice_is_refused,
    a_late_release_spares_the_newer_holder,
    extend_adds_or_replaces,
    a_lost_lock_cannot_be_extended,
    a_waiter_gets_it_next,
    one_at_a_time,
    without_a_timeout,
    a_transaction_deletes_its_own,
    asyncio_acquires_extends_and_releases,
    asyncio_late_release_spares_the_newer_holder,
    *([a_grant_has_a_larger_token, a_revoked_lock_is_lost] if ON_RINGFENCE else []),
)
