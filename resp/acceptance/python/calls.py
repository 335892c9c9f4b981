"""One connection that takes a lock and gives it back, again and again. Prints the median time of each call, in milliseconds, as JSON."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from statistics import median
from typing import Any

from redis import Redis

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

client = Redis(host=os.environ["LOCKS_HOST"], port=int(os.environ["LOCKS_PORT"]), single_connection_client=True)
has_tokens, release = os.environ["CALLS_TOKENS"] == "1", client.register_script(RELEASE)
times: defaultdict[str, list[float]] = defaultdict(list)


def timed(name: str, call: Any, *arguments: Any, **named: Any) -> Any:
    begun = time.perf_counter()
    answer = call(*arguments, **named)
    times[name].append((time.perf_counter() - begun) * 1_000)
    return answer


def set_with_token(key: str, value: str) -> list[Any]:
    packet = client.pipeline(transaction=False)
    packet.set(key, value, nx=True, px=10_000)
    packet.execute_command("RINGFENCE.TOKEN", key, value)
    return packet.execute()


end, done = time.monotonic() + float(os.environ["CYCLES_SECONDS"]), 0
while time.monotonic() < end:
    key, value = f"calls/{done % 100}", f"value-{done}"
    assert timed("acquire", client.set, key, value, nx=True, px=10_000)
    if has_tokens:
        assert timed("token", client.execute_command, "RINGFENCE.TOKEN", key, value)
    assert timed("release", release, keys=[key], args=[value]) == 1
    if has_tokens:
        assert all(timed("acquire with token", set_with_token, key, value))
        assert release(keys=[key], args=[value]) == 1
    done += 1
print(json.dumps({name: median(of) for name, of in times.items()}))
