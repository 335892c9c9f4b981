"""The load of one process: acquires and releases leases, each on a key of its own, and prints how often in the time.

    load.py KIND LEASES SECONDS URL…

KIND is a library: ringfence, redis or etcd for threads, and the same with -aio for asyncio.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

TTL = 10
# What is first done once, as connecting, is not counted.
WARMUP = 0.5
# redis-py fails beyond its limit of connections, which is 100.
MOST = 1_000

Cycle = Callable[[str], None]
AioCycle = Callable[[str], Awaitable[None]]


def ringfence(urls: list[str]) -> Cycle:
    import ringfence

    client = ringfence.Client(urls)

    def cycle(key: str) -> None:
        client.lock(key, ttl=TTL).acquire().release()

    return cycle


def redis(urls: list[str]) -> Cycle:
    import redis

    client = redis.Redis.from_url(urls[0], max_connections=MOST)

    def cycle(key: str) -> None:
        lock = client.lock(key, timeout=TTL)
        assert lock.acquire()
        lock.release()

    return cycle


def etcd(urls: list[str]) -> Cycle:
    import pyetcd

    where = urlsplit(urls[0])
    client = pyetcd.client(host=where.hostname, port=where.port)

    def cycle(key: str) -> None:
        lock = client.lock(key, ttl=TTL)
        assert lock.acquire()
        lock.release()

    return cycle


async def ringfence_aio(urls: list[str]) -> AioCycle:
    from ringfence import aio

    client = aio.Client(urls)

    async def cycle(key: str) -> None:
        await (await client.lock(key, ttl=TTL).acquire()).release()

    return cycle


async def redis_aio(urls: list[str]) -> AioCycle:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(urls[0], max_connections=MOST)

    async def cycle(key: str) -> None:
        lock = client.lock(key, timeout=TTL)
        assert await lock.acquire()
        await lock.release()

    return cycle


async def etcd_aio(urls: list[str]) -> AioCycle:
    import aetcd

    where = urlsplit(urls[0])
    client = aetcd.Client(host=str(where.hostname), port=int(where.port or 2379))

    async def cycle(key: str) -> None:
        lock = client.lock(key.encode(), ttl=TTL)
        assert await lock.acquire()
        await lock.release()

    return cycle


class Counter:
    """Counts the cycles that end within the time."""

    def __init__(self, seconds: float) -> None:
        self.begins = time.monotonic() + WARMUP
        self.ends = self.begins + seconds
        self.counts: list[int] = []

    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    def is_counted(self) -> bool:
        return self.begins <= time.monotonic() < self.ends


def with_threads(cycle: Cycle, leases: int, counter: Counter) -> None:
    def work(number: int) -> None:
        count = 0
        while not counter.is_over():
            cycle(f"bench/{number}")
            count += counter.is_counted()
        counter.counts.append(count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(leases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def with_tasks(
    make: Callable[[list[str]], Awaitable[AioCycle]], leases: int, counter: Counter, urls: list[str]
) -> None:
    cycle = await make(urls)

    async def work(number: int) -> None:
        count = 0
        while not counter.is_over():
            await cycle(f"bench/{number}")
            count += counter.is_counted()
        counter.counts.append(count)

    await asyncio.gather(*(work(number) for number in range(leases)))


def main(kind: str, leases: int, seconds: float, urls: list[str]) -> None:
    counter = Counter(seconds)
    if kind.endswith("-aio"):
        make = {"ringfence-aio": ringfence_aio, "redis-aio": redis_aio, "etcd-aio": etcd_aio}[kind]
        asyncio.run(with_tasks(make, leases, counter, urls))
    else:
        with_threads({"ringfence": ringfence, "redis": redis, "etcd": etcd}[kind](urls), leases, counter)
    # A worker that failed has no count.
    assert len(counter.counts) == leases, f"{leases - len(counter.counts)} of {leases} workers failed"
    print(json.dumps({"per_s": sum(counter.counts) / seconds}))


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
