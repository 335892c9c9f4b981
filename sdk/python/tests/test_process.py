"""Holders that are processes: stopped, forked, interrupted, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import SOON, Cluster, until

import ringfence

SOURCE = Path(ringfence.__file__).parent.parent
# Python 3.12 warns of each fork beside threads. Some scripts drop a lease.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning", "-W", "ignore:ringfence:ResourceWarning"]


def start(cluster: Cluster, script: str) -> subprocess.Popen[str]:
    """A process whose lines are read one by one."""
    # In the background of a script, SIGINT is ignored, and so it would be here.
    head = (
        "import ringfence, os, signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    head += f"client = ringfence.Client({cluster.urls!r})\n"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *STRICT, "-c", head + script]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def rest(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=SOON)[0]
    finally:
        process.kill()


def test_a_process_that_was_stopped_past_its_ttl_sees_the_loss_at_its_first_look(
    cluster: Cluster, client: ringfence.Client
) -> None:
    holder = start(
        cluster,
        """
lease = client.lock("process/stopped", ttl=1).acquire()
state = lease.state
print(lease.token)
while state is lease.state: pass
print(lease.state.value, lease.lost_reason)
try: lease.release()
except ringfence.Lost as error: print(error.reason)
""",
    )
    token = int(line(holder))
    holder.send_signal(signal.SIGSTOP)
    successor = client.lock("process/stopped", wait=SOON).acquire()
    assert successor.token > token
    holder.send_signal(signal.SIGCONT)
    assert rest(holder).split("\n") in (
        ["lost unconfirmed", "unconfirmed", ""],
        ["lost expired", "expired", ""],
        ["unsure None", "unconfirmed", ""],
    )
    assert cluster.holders("process/stopped")[0]["token"] == successor.token
    successor.release()


def test_a_forked_child_has_lost_the_lease_deletes_nothing_and_can_acquire_its_own(cluster: Cluster) -> None:
    holder = start(
        cluster,
        """
with client.lock("process/forked", ttl=6) as lease:
    child = os.fork()
    if child == 0:
        print(lease.state.value, lease.lost_reason, lease.remaining)
        for call in (lease.check, lease.release, lease.renew, lease.into_id):
            try: call()
            except ringfence.Lost as error: print(error.reason)
        with client.lock("process/of-the-child") as own: print(own.state.value)
        del lease
        try: sys.exit(0)
        finally: client.close()
    os.waitpid(child, 0)
    until = lease._held.read().until
    while lease._held.read().until == until: time.sleep(0.01)
    print(lease.state.value, lease.token)
""",
    )
    lines = rest(holder).split("\n")
    assert lines[:6] == ["lost forked 0.0", *["forked"] * 4, "held"], lines
    # The block of the child ends with that of the parent's lease, which it has not.
    assert any(found.startswith("held ") for found in lines[6:]), lines
    assert cluster.holders("process/forked") == []


def test_whoever_is_interrupted_while_it_waits_leaves_the_queue(
    cluster: Cluster, client: ringfence.Client
) -> None:
    with client.lock("process/interrupted"):
        waiter = start(
            cluster,
            """
print("waits")
try: client.lock("process/interrupted").acquire()
except KeyboardInterrupt: print("interrupted")
""",
        )
        assert line(waiter) == "waits"
        until(lambda: cluster.waiters("process/interrupted"), "it waits")
        waiter.send_signal(signal.SIGINT)
        assert rest(waiter) == "interrupted\n"
        until(lambda: not cluster.waiters("process/interrupted"), "it left")


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError"])
def test_a_block_is_left_before_the_process_ends_however_that_is(cluster: Cluster, end: str) -> None:
    holder = start(
        cluster,
        f"""
with client.lock("process/ends", ttl=600) as lease:
    print(lease.token)
    {end}
""",
    )
    assert int(line(holder)) > 0
    output = rest(holder)
    assert ("KeyError" in output) is ("KeyError" in end), output
    assert cluster.holders("process/ends") == []


def test_a_dropped_lease_is_released_before_the_process_ends(cluster: Cluster) -> None:
    output = rest(start(cluster, 'print(client.lock("process/dropped", ttl=600).acquire().token)'))
    assert int(output) > 0
    assert cluster.holders("process/dropped") == []


def test_an_event_loop_that_ends_without_close_has_released_first(cluster: Cluster) -> None:
    script = """
import asyncio
async def main():
    client = ringfence.aio.Client(%r)
    lease = await client.lock("process/loop", ttl=600).acquire()
    print(lease.token)
    del lease
    await asyncio.sleep(0)
asyncio.run(main())
"""
    output = rest(start(cluster, script % cluster.urls))
    assert int(output.splitlines()[0]) > 0
    assert cluster.holders("process/loop") == []
