"""Programs that end, and signal handlers, while something is pending."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import pytest
from cluster import SOON, Cluster, until
from test_process import line, rest, start

import ringfence
from ringfence import _runner
from ringfence._runner import Runner
from ringfence._signal import Flag


def aio(body: str) -> str:
    return f"""
import asyncio, gc
async def main():
    c = ringfence.aio.Client(URLS)
{body}
asyncio.run(main())
"""


ASYNCIO = {
    "an acquire that is pending": """
    await c.lock("warm").acquire()
    t = asyncio.create_task(c.lock("KEY", ttl=600).acquire())
    await asyncio.sleep(PAUSE)""",
    "a release that is pending": """
    lease = await c.lock("KEY", ttl=600).acquire()
    t = asyncio.create_task(lease.release())
    await asyncio.sleep(PAUSE)""",
    "a release that is cancelled": """
    lease = await c.lock("KEY", ttl=600).acquire()
    t = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    t.cancel()""",
    "a release that has not begun": """
    lease = await c.lock("KEY", ttl=600).acquire()
    t = asyncio.create_task(lease.release())""",
    "a lease that is dropped": """
    lease = await c.lock("KEY", ttl=600).acquire()
    del lease
    gc.collect()""",
    "a block that is pending": """
    async def work():
        async with c.lock("KEY", ttl=600): await asyncio.sleep(600)
    t = asyncio.create_task(work())
    await asyncio.sleep(PAUSE)""",
    "a cancelled acquire": """
    t = asyncio.create_task(c.lock("KEY", ttl=600).acquire())
    await asyncio.sleep(PAUSE)
    t.cancel()""",
}


@pytest.mark.parametrize("what", ASYNCIO)
def test_an_event_loop_that_ends_has_released_whatever_was_pending(cluster: Cluster, what: str) -> None:
    for number, pause in enumerate((0, 0.001, 0.003, 0.01, 0.03)):
        key = f"ends/{what}/{number}".replace(" ", "-")
        body = ASYNCIO[what].replace("PAUSE", str(pause)).replace("KEY", key)
        script = aio(body).replace("URLS", repr(cluster.urls))
        output = rest(start(cluster, script))
        # Neither a task that was destroyed nor a transport that was not closed.
        assert output == ""
        assert cluster.holders(key) == [], (what, pause, output)


INTERRUPTED = {
    "a body": """
    async with c.lock("KEY", ttl=600):
        print("works")
        await asyncio.sleep(600)""",
    "an acquire": """
    async with c.lock("other/KEY", ttl=600):
        print("waits")
        await c.lock("other/KEY").acquire()""",
    "what goes on beside": """
    async def work():
        async with c.lock("KEY", ttl=600):
            print("works")
            await asyncio.sleep(600)
    t = asyncio.create_task(work())
    await asyncio.sleep(600)""",
}


@pytest.mark.parametrize("what", INTERRUPTED)
def test_an_event_loop_that_is_interrupted_has_released(cluster: Cluster, what: str) -> None:
    key = f"ends/interrupted/{what}".replace(" ", "-")
    process = start(cluster, aio(INTERRUPTED[what].replace("KEY", key)).replace("URLS", repr(cluster.urls)))
    line(process)
    if what == "an acquire":
        until(lambda: cluster.waiters(f"other/{key}"), "it waits")
    process.send_signal(signal.SIGINT)
    output = rest(process)
    assert "KeyboardInterrupt" in output
    assert "Task was destroyed" not in output
    for one in (key, f"other/{key}"):
        assert cluster.holders(one) == [], output
        assert not cluster.waiters(one), output


FINAL = {
    "a finalizer that releases": """
class Owner:
    def __init__(self): self.lease = client.lock("KEY", ttl=2).acquire()
    def __del__(self): self.lease.release()
owner = Owner()""",
    "a block in a generator": """
def work():
    with client.lock("KEY", ttl=2): yield
generator = work()
next(generator)""",
    "a finalizer that closes": """
class Owner:
    def __init__(self): self.client = client; self.lease = client.lock("KEY", ttl=2).acquire()
    def __del__(self): self.client.close()
owner = Owner()""",
    "a finalizer that acquires": """
class Owner:
    def __init__(self): self.lock = client.lock("KEY", ttl=2); self.lock.acquire().release()
    def __del__(self):
        try: self.lock.acquire()
        except ringfence.Closed as error: print("Closed:", error)
owner = Owner()""",
}


@pytest.mark.parametrize("what", FINAL)
def test_nothing_waits_while_the_interpreter_ends(cluster: Cluster, what: str) -> None:
    key = f"ends/{what}".replace(" ", "-")
    process = start(cluster, FINAL[what].replace("KEY", key))
    output = rest(process)
    assert process.returncode == 0
    assert "Traceback" not in output, output
    assert "program ended" in output or "the program ends" in output, output
    until(lambda: cluster.holders(key) == [], "it ends with its ttl")


def test_what_other_threads_wait_for_is_given_back_when_the_process_ends(
    cluster: Cluster, client: ringfence.Client
) -> None:
    with client.lock("ends/daemon"):
        process = start(
            cluster,
            """
import threading
threading.Thread(target=client.lock("ends/daemon").acquire, daemon=True).start()
print("begun")
sys.stdin.readline()
""",
        )
        assert line(process) == "begun"
        until(lambda: cluster.waiters("ends/daemon"), "it waits")
        rest(process)
        assert not cluster.waiters("ends/daemon")


def test_what_a_dropped_client_releases_is_waited_for_when_the_process_ends(cluster: Cluster) -> None:
    process = start(
        cluster,
        """
leases = [client.lock(f"ends/dropped/{number}", ttl=600).acquire() for number in range(40)]
del leases, client
""",
    )
    assert rest(process) == ""
    for number in range(40):
        assert cluster.holders(f"ends/dropped/{number}") == [], number


def test_a_process_waits_for_all_its_clients_at_once_when_it_ends(cluster: Cluster) -> None:
    """Once, clients whose clusters hung took two seconds each, one after the other."""
    process = start(
        cluster,
        """
from ringfence.testing import FakeCluster
fake = FakeCluster()
leases = [fake.client().lock(f"ends/{number}").acquire() for number in range(40)]
fake._loop.call_soon_threadsafe(time.sleep, 600)
for lease in leases:
    try: lease.release(timeout=0.01)
    except ringfence.TimedOut: pass
print("ends")
""",
    )
    assert line(process) == "ends"
    # One after the other they would take longer than that waits.
    output = rest(process)
    assert output.count("could not be released before the program ended") == 40, output


def test_a_process_may_end_while_another_thread_begins_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ringfence.Client("http://127.0.0.1:1")._settings
    is_over = threading.Event()
    is_settled = Flag()
    is_settled.set()
    monkeypatch.setattr(_runner, "begin", lambda *_: False)
    monkeypatch.setattr(_runner, "written", lambda _: None)
    monkeypatch.setattr(Runner, "begin_settling", lambda *_: is_settled)

    def add() -> None:
        while not is_over.is_set():
            runners = [Runner(settings) for _ in range(100)]
            for runner in runners:
                with suppress(RuntimeError):
                    runner._started()

    adding = threading.Thread(target=add)
    adding.start()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            _runner._at_exit()
    finally:
        is_over.set()
        adding.join(SOON)


HANDLERS = {
    "looks": "lease.check(); lease.state; lease.remaining",
    "releases": "lease.release()",
    "acquires": 'client.lock("KEY/other", wait=0).acquire().release()',
}


@pytest.mark.parametrize("what", HANDLERS)
def test_a_signal_handler_may_call_anything_whatever_it_interrupts(cluster: Cluster, what: str) -> None:
    """Once, a handler that interrupted a look at a lease waited for ever for the lock of that look."""
    script = """
import random
client.lock("KEY/first", wait=0).acquire().release()
lease = client.lock("KEY", ttl=30).acquire()
calls = 0
def handler(*_):
    global calls, lease
    HANDLE
    calls += 1
    if "releases" == "WHAT": lease = client.lock("KEY", ttl=30).acquire()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.003))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
end = time.monotonic() + 3
while time.monotonic() < end:
    try: lease.check(); lease.remaining; client.lock("KEY/mine", wait=0).acquire().release()
    except ringfence.Lost: pass
signal.setitimer(signal.ITIMER_REAL, 0)
print("calls", calls)
client.close()
"""
    key = f"ends/handler/{what}"
    script = script.replace("HANDLE", HANDLERS[what]).replace("KEY", key).replace("WHAT", what)
    output = rest(start(cluster, script))
    assert "calls" in output, output
    assert int(output.split()[-1]) > 0, output
