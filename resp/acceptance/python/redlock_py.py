"""redlock-py, with one server."""

import redis
from redlock import Redlock
from steps import HOST, ON_RINGFENCE, PORT, play, token, until

client = redis.Redis(HOST, PORT)
locks = Redlock([{"host": HOST, "port": PORT, "db": 0}], retry_count=2, retry_delay=0.05)


def acquires_and_releases(key):
    lock = locks.lock(key, 10_000)
    assert lock and client.get(key) == lock.key
    assert not locks.lock(key, 10_000)
    locks.unlock(lock)
    again = locks.lock(key, 10_000)
    assert again
    locks.unlock(again)
    assert client.get(key) is None


def a_late_release_spares_the_newer_holder(key):
    late = locks.lock(key, 300)
    assert late
    newer = until(lambda: locks.lock(key, 10_000), "the end of the lock")
    locks.unlock(late)
    assert client.get(key) == newer.key
    locks.unlock(newer)


def a_grant_has_a_larger_token(key):
    tokens = []
    for _ in range(2):
        lock = locks.lock(key, 10_000)
        tokens.append(token(client, key, lock.key))
        locks.unlock(lock)
    assert tokens[0] < tokens[1]


play(
    "redlock-py",
    acquires_and_releases,
    a_late_release_spares_the_newer_holder,
    *([a_grant_has_a_larger_token] if ON_RINGFENCE else []),
)
