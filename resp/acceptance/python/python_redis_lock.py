"""python-redis-lock, without waiting: its waiters sleep on a list (BLPOP), which its release fills."""

import threading

import redis
from redis_lock import AlreadyAcquired, Lock, NotAcquired
from steps import HOST, ON_RINGFENCE, PORT, is_refused, play, raises, token, until

client = redis.Redis(HOST, PORT)


def acquires_extends_and_releases(key):
    lock = Lock(client, key, expire=10)
    assert lock.acquire(blocking=False) and lock.locked()
    raises(AlreadyAcquired, lambda: lock.acquire(blocking=False))
    lock.extend(20)
    assert 17_000 < client.pttl(f"lock:{key}") <= 20_000
    lock.release()
    assert not lock.locked()
    assert lock.acquire(blocking=False), "with the same value again"
    lock.release()


def a_second_one_is_refused(key):
    first, second = Lock(client, key, expire=10), Lock(client, key, expire=10)
    assert first.acquire(blocking=False) and not second.acquire(blocking=False)
    assert second.get_owner_id() == first.id
    first.release()
    assert second.acquire(blocking=False)
    second.release()


def a_late_release_spares_the_newer_holder(key):
    late, newer = Lock(client, key, expire=1), Lock(client, key, expire=10)
    assert late.acquire(blocking=False)
    until(lambda: newer.acquire(blocking=False), "the end of the lock")
    raises(NotAcquired, late.release)
    raises(NotAcquired, late.extend)
    assert newer.get_owner_id() == newer.id
    newer.release()


def it_renews_by_itself(key):
    lock = Lock(client, key, expire=2, auto_renewal=True)
    assert lock.acquire(blocking=False)
    least = client.pttl(f"lock:{key}")

    def renewed():
        nonlocal least
        now = client.pttl(f"lock:{key}")
        assert now > 0, "it was lost"
        least, before = min(least, now), least
        return now > before + 500

    until(renewed, "a renewal")
    lock.release()


def reset_frees_it(key):
    lock = Lock(client, key, expire=10)
    assert lock.acquire(blocking=False)
    lock.reset()
    assert not lock.locked()


def a_waiter_is_refused(key):
    first, second = Lock(client, key, expire=10), Lock(client, key, expire=10)
    assert first.acquire(blocking=False)
    is_refused(raises(redis.ResponseError, lambda: second.acquire(timeout=5)))
    first.release()


def a_waiter_gets_it_next(key):
    first, second = Lock(client, key, expire=10), Lock(client, key, expire=10)
    assert first.acquire(blocking=False)
    threading.Timer(0.2, first.release).start()
    assert second.acquire(timeout=4)
    second.release()


def a_grant_has_a_larger_token(key):
    lock, tokens = Lock(client, key, expire=10), []
    for _ in range(2):
        assert lock.acquire(blocking=False)
        tokens.append(token(client, f"lock:{key}", lock.id))
        lock.release()
    assert tokens[0] < tokens[1]


play(
    "python-redis-lock",
    acquires_extends_and_releases,
    a_second_one_is_refused,
    a_late_release_spares_the_newer_holder,
    it_renews_by_itself,
    reset_frees_it,
    *([a_waiter_is_refused, a_grant_has_a_larger_token] if ON_RINGFENCE else [a_waiter_gets_it_next]),
)
