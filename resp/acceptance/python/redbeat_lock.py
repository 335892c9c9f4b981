"""celery-redbeat: the lock of its scheduler. Its schedule is in the same Redis, so this lock alone does not move it."""

from types import SimpleNamespace

import redis
from celery import Celery
from redbeat import schedulers
from redis.exceptions import LockNotOwnedError
from steps import HOST, ON_RINGFENCE, PORT, play, raises, token

client = redis.Redis(HOST, PORT, decode_responses=True)


def scheduler(key, seconds):
    """What `acquire_distributed_beat_lock` needs of a scheduler."""
    app = Celery("acceptance", broker="memory://")
    app.conf.update(redbeat_redis_url=f"redis://{HOST}:{PORT}", redbeat_lock_key=key)
    schedulers.ensure_conf(app)
    return SimpleNamespace(
        app=app, lock=None, lock_key=app.redbeat_conf.lock_key, lock_timeout=seconds, max_interval=0.05
    )


def start(key, seconds=10):
    one = scheduler(key, seconds)
    schedulers.acquire_distributed_beat_lock(sender=SimpleNamespace(scheduler=one))
    return one


def acquires_extends_and_releases(key):
    one = start(key)
    assert one.lock.owned()
    # Its own script replaces the time that is left.
    assert one.lock.extend(20) and 17_000 < client.pttl(one.lock_key) <= 20_000
    assert one.lock.extend(10) and 8_000 < client.pttl(one.lock_key) <= 10_000
    one.lock.release()
    assert client.get(one.lock_key) is None


def the_next_one_takes_over(key):
    stopped = start(key, 1)
    newer = start(key, 10)
    assert newer.lock.owned() and not stopped.lock.owned()
    raises(LockNotOwnedError, lambda: stopped.lock.extend(10))
    raises(LockNotOwnedError, stopped.lock.release)
    newer.lock.release()


def a_grant_has_a_larger_token(key):
    tokens = []
    for _ in range(2):
        one = start(key)
        tokens.append(token(client, one.lock_key, one.lock.local.token))
        one.lock.release()
    assert tokens[0] < tokens[1]


play(
    "celery-redbeat",
    acquires_extends_and_releases,
    the_next_one_takes_over,
    *([a_grant_has_a_larger_token] if ON_RINGFENCE else []),
)
