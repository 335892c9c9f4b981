"""The libraries that `run` plays, by name."""

from __future__ import annotations

import installs
from authors import GoTest, Mocha, Pytest
from libraries import Library, go, java, node, python, rust
from restart import Restart

TESTS_OF_REDIS_PY = ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
FOR_REDSYNC = {
    # Rueidis gives up if the server does not track keys for its cache.
    "rueidislib.ClientOption{": "rueidislib.ClientOption{{DisableCache: true,",
    # The ports of its servers become ports that the system gives to no client. The shim knows them.
    "51200": "21200",
}


def pytest(name: str, pins: str) -> Library:
    def command() -> list[str]:
        return [str(installs.python(pins)), "-m", "pytest"]

    return Pytest(name, command, pins=pins, package="redis", files=TESTS_OF_REDIS_PY)


def go_test(name: str, module: str, **options) -> Library:
    return GoTest(name, lambda: [installs.tool("go")], module=module, **options)


def mocha(name: str, package: str, file: str) -> Library:
    def command() -> list[str]:
        place = installs.node("old")
        return ["node", "--require", str(place / "preload.cjs"), str(place / "node_modules/mocha/bin/mocha")]

    return Mocha(name, command, package=package, file=file)


ALL = [
    python("redis-py-8", "redis-8", "redis_py"),
    python("redis-py-5", "redis-5", "redis_py"),
    python("guarded", "redis-8", "guarded"),
    python("pottery", "redis-8", "pottery_redlock"),
    python("redlock-py", "redis-8", "redlock_py"),
    python("python-redis-lock", "redis-8", "python_redis_lock"),
    python("celery-redbeat", "redis-5", "redbeat_lock"),
    node("node-redlock-4", "old", "redlock4"),
    node("node-redlock-5", "current", "redlock5", "redlock"),
    node("sesamecare-redlock", "current", "redlock5", "@sesamecare-oss/redlock"),
    node("redlock-universal", "current", "universal"),
    node("redis-semaphore", "current", "semaphore"),
    node("node-redis-warlock", "old", "warlock"),
    node("node-redis", "current", "clients", "redis"),
    node("ioredis", "current", "clients", "ioredis"),
    go("go-redsync", "redsync"),
    go("bsm-redislock", "redislock"),
    rust("rslock"),
    java("shedlock", "shedlock", "shedlock-provider-redis-spring"),
    java("spring-integration", "spring", "spring-integration-redis"),
    java("redisson", "redisson", "redisson"),
    Restart("restart", lambda: []),
    pytest("authors-redis-py-8", "redis-8"),
    pytest("authors-redis-py-5", "redis-5"),
    mocha("authors-node-redlock-4", "redlock", "test.js"),
    mocha("authors-node-redis-warlock", "node-redis-warlock", "test/warlock.js"),
    go_test("authors-go-redsync", "github.com/go-redsync/redsync/v4", has_shim=True, changes=FOR_REDSYNC),
    go_test("authors-bsm-redislock", "github.com/bsm/redislock", changes={"127.0.0.1:6379": "{address}"}),
]
