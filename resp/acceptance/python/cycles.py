"""Tasks that acquire and release a lock each, again and again. Prints how often they did."""

from __future__ import annotations

import asyncio
import os
import time

from redis.asyncio import Redis


async def main() -> int:
    clients, seconds = int(os.environ["CYCLES_CLIENTS"]), float(os.environ["CYCLES_SECONDS"])
    client = Redis(host=os.environ["LOCKS_HOST"], port=int(os.environ["LOCKS_PORT"]))

    async def locks(number: int) -> int:
        lock, done = client.lock(f"cycles/{number}", timeout=10), 0
        await lock.acquire()
        await lock.release()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert await lock.acquire(blocking=False)
            await lock.release()
            done += 1
        return done

    return sum(await asyncio.gather(*map(locks, range(clients))))


print(asyncio.run(main()))
