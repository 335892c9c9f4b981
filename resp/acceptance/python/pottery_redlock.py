"""pottery: its Redlock, with one server."""

import redis
from pottery import ExtendUnlockedLock, Redlock, ReleaseUnlockedLock
from steps import HOST, ON_RINGFENCE, PORT, play, raises, token, until

client = redis.Redis(HOST, PORT)


def lock_of(key, seconds=10):
    return Redlock(key=key, masters={client}, auto_release_time=seconds)


def acquires_extends_and_releases(key):
    lock = lock_of(key)
    assert not lock.locked()
    assert lock.acquire(blocking=False) and 8 < lock.locked() <= 10
    for _ in range(3):
        lock.extend()
    assert 8 < lock.locked() <= 10
    lock.release()
    assert not lock.locked()
    raises(ReleaseUnlockedLock, lock.release)


def a_second_one_is_refused(key):
    first, second = lock_of(key), lock_of(key)
    assert first.acquire(blocking=False) and not second.acquire(blocking=False)
    assert not second.acquire(timeout=0.5)
    first.release()
    with second:
        assert second.locked()


def a_late_release_spares_the_newer_holder(key):
    late, newer = lock_of(key, 0.3), lock_of(key)
    assert late.acquire(blocking=False)
    until(lambda: newer.acquire(blocking=False), "the end of the lock")
    raises(ReleaseUnlockedLock, late.release)
    raises(ExtendUnlockedLock, late.extend)
    assert newer.locked()
    newer.release()


def a_grant_has_a_larger_token(key):
    lock, tokens = lock_of(key), []
    for _ in range(2):
        assert lock.acquire(blocking=False)
        tokens.append(token(client, lock.key, lock._uuid))
        lock.release()
    assert tokens[0] < tokens[1]


play(
    "pottery",
    acquires_extends_and_releases,
    a_second_one_is_refused,
    a_late_release_spares_the_newer_holder,
    *([a_grant_has_a_larger_token] if ON_RINGFENCE else []),
)
