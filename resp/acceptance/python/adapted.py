"""A plugin of pytest for the tests of redis-py.

On Ringfence, a lock without an expiry gets one, a SET that takes a key from its holder becomes a script, and keys are cleared one by one.
"""

import os
import sys
from unittest.mock import MagicMock

import redis
import redis.asyncio
from redis.asyncio.lock import Lock as AsyncLock
from redis.commands.core import BasicKeyCommands
from redis.lock import Lock

# Modules that the test files import, but the tests of locks do not need.
for module in ("mock", "mock.mock", "redis_entraid", "redis_entraid.cred_provider", "redis_entraid.identity_provider"):
    sys.modules[module] = MagicMock()

LONG_MS = 30_000
# The keys of the tests.
KEYS = ["foo"]


def with_timeout(initialize):
    def changed(self, redis, name, timeout=None, *args, **options):
        initialize(self, redis, name, LONG_MS / 1_000 if timeout is None else timeout, *args, **options)

    return changed


def with_expiry(plain):
    def changed(self, name, value, ex=None, px=None, nx=False, *args, **options):
        if not nx:
            return self.eval("return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])", 1, name, value, LONG_MS)
        return plain(self, name, value, ex, LONG_MS if ex is None and px is None else px, nx, *args, **options)

    return changed


def delete_keys(self, *args, **options):
    return self.delete(*KEYS)


if os.environ["LOCKS_HTTP"]:
    for lock in (Lock, AsyncLock):
        lock.__init__ = with_timeout(lock.__init__)
    BasicKeyCommands.set = with_expiry(BasicKeyCommands.set)
    for client in (redis.Redis, redis.asyncio.Redis):
        client.flushdb = client.flushall = delete_keys
