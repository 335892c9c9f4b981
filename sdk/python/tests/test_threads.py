"""What the threads of a client survive: no room for another, hooks that end or block, and a log that somebody has locked."""

from __future__ import annotations

import _thread
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cluster import SOON, until
from conftest import JumpingClock
from played import Background, Played, granted

import ringfence
from ringfence._runner import Runner
from ringfence._threads import _WRITERS, LOG, Line, written

FIRST = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e11"


def serve(node: Played, deleted: list[str], status: int = 204) -> threading.Event:
    """Makes the node grant, renew and release. Returns an event that a renewal sets."""
    is_renewed = threading.Event()

    def main() -> None:
        while True:
            asked = node._asked.get()
            if asked.path == "/v1/renew":
                asked.renew_all(ttl_ms=60_000)
                is_renewed.set()
            elif asked.method == "DELETE":
                deleted.append(asked.lease_id)
                asked.answer(204) if status == 204 else asked.problem(status, "forbidden")
            else:
                asked.grant()

    threading.Thread(target=main, daemon=True).start()
    return is_renewed


class Room:
    """For threads of the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self.is_full = False
        begin, start = _thread.start_new_thread, threading.Thread.start

        def limited_begin(main: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
            self._check(main.__module__)
            return begin(main, arguments)

        def limited_start(thread: threading.Thread) -> None:
            self._check(thread.name)
            start(thread)

        monkeypatch.setattr("_thread.start_new_thread", limited_begin)
        monkeypatch.setattr("threading.Thread.start", limited_start)

    def _check(self, whose: str) -> None:
        if self.is_full and whose.startswith("ringfence"):
            self.refused += 1
            raise RuntimeError("can't start new thread")


def test_without_room_for_the_thread_of_hooks_leases_are_renewed_and_released_and_hooks_told_later(
    node: Played, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Told(ringfence.Hooks):
        def granted(self, lease: ringfence.LeaseView, seconds: float) -> None:
            told.append("granted")

        def released(self, lease: ringfence.LeaseView) -> None:
            told.append("released")

    deleted: list[str] = []
    is_renewed = serve(node, deleted)
    client = ringfence.Client(node.url, hooks=Told(), clock=clock)
    client.adopt(FIRST).into_id()
    room = Room(monkeypatch)
    room.is_full = True
    lease = client.lock("a", ttl=60).acquire(timeout=SOON)
    clock.jump(25)
    assert is_renewed.wait(SOON)
    assert lease.state is not ringfence.State.LOST
    lease.release(timeout=SOON)
    assert deleted == [lease.lease_id]
    assert room.refused > 0
    assert told == []
    room.is_full = False
    client.lock("b", ttl=60).acquire(timeout=SOON).release(timeout=SOON)
    until(lambda: told == ["granted", "released"] * 2, "all is told")
    client.close()


def test_without_room_for_a_thread_the_next_call_tries_again(
    node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(node, [])
    client = ringfence.Client(node.url)
    room = Room(monkeypatch)
    room.is_full = True
    with pytest.raises(RuntimeError, match="allow threads"):
        client.adopt(FIRST)
    room.is_full = False
    begin = Runner._begin

    async def fail(*_: Any) -> bool:
        raise OSError("too many open files")

    monkeypatch.setattr(Runner, "_begin", fail)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="allow threads"):
            client.adopt(FIRST)

    async def late(runner: Runner, *ready: Any) -> bool:
        time.sleep(0.1)
        return await begin(runner, *ready)

    monkeypatch.setattr(Runner, "_begin", late)
    assert client.adopt(FIRST, timeout=SOON).into_id() == FIRST
    client.close()


def test_on_lost_is_called_once_there_is_room_for_a_thread(
    node: Played, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(node, [])
    client = ringfence.Client(node.url, clock=clock)
    lost = threading.Event()
    lease = client.lock("a", ttl=600, max_hold=300, on_lost=lambda _: lost.set()).acquire(timeout=SOON)
    room = Room(monkeypatch)
    room.is_full = True
    clock.jump(301)
    until(lambda: room.refused > 0, "a thread was refused")
    room.is_full = False
    assert lost.wait(SOON)
    assert lease.lost_reason == "max-hold"
    client.close()


def test_a_hook_that_ends_its_thread_or_blocks_loses_nothing_but_renewals(
    background: Background, node: Played, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    gate = threading.Event()

    class Bad(ringfence.Hooks):
        def granted(self, lease: ringfence.LeaseView, seconds: float) -> None:
            told.append("granted")
            gate.wait()
            sys.exit(1)

        def renewed(self, lease: ringfence.LeaseView) -> None:
            told.append("renewed")

        def released(self, lease: ringfence.LeaseView) -> None:
            told.append("released")

    monkeypatch.setattr("ringfence._hooks._MOST", 2)
    client = ringfence.Client(node.url, hooks=Bad(), clock=clock)
    lease = granted(background, client, node, ttl=600)
    for _ in range(5):
        clock.jump(250)
        node.receive("POST", "/v1/renew").renew_all(ttl_ms=600_000)
        until(lambda: lease.remaining > 500, "it is renewed")
    serve(node, [])
    lease.release(timeout=SOON)
    for key in ("b", "c", "d"):
        client.lock(key, ttl=600).acquire(timeout=SOON).release(timeout=SOON)
    gate.set()
    until(lambda: told.count("released") == 4, "all releases are told")
    assert told.count("granted") == 4
    assert told.count("renewed") <= 3
    client.close()


def test_a_client_that_is_closed_beside_its_first_call_keeps_nothing(
    background: Background, node: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    serve(node, deleted)
    begin = Runner._begin
    reached, go_on = threading.Event(), threading.Event()

    async def late(runner: Runner, *ready: Any) -> bool:
        reached.set()
        go_on.wait()
        return await begin(runner, *ready)

    monkeypatch.setattr(Runner, "_begin", late)
    client = ringfence.Client(node.url)
    call = background(client.lock("a", ttl=60).acquire)
    reached.wait(SOON)
    assert client.close() == 0
    go_on.set()
    with pytest.raises(ringfence.Closed):
        call.result(SOON)
    runner = client._runner()
    until(runner._is_over.is_set, "its thread ends")


def test_a_signal_handler_may_release_whatever_lock_of_the_log_it_has_interrupted(node: Played) -> None:
    serve(node, [], status=403)
    logger = logging.getLogger("ringfence")
    told: list[BaseException] = []

    class Interrupted(logging.Handler):
        """Has its lock while it emits."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "work":
                signal.raise_signal(signal.SIGUSR1)

    def release(*_: object) -> None:
        try:
            lease.release(timeout=5)
        except ringfence.Error as error:
            told.append(error)

    client = ringfence.Client(node.url)
    lease = client.lock("a", ttl=60).acquire(timeout=SOON)
    handler, before = Interrupted(), signal.signal(signal.SIGUSR1, release)
    logger.addHandler(handler)
    try:
        logger.warning("work")
    finally:
        logger.removeHandler(handler)
        signal.signal(signal.SIGUSR1, before)
    assert [type(one) for one in told] == [ringfence.Unauthorized]
    client.close()


def test_what_comes_while_the_thread_of_the_log_ends_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, a thread that was ending kept the next one from beginning, so a log line stayed in the queue."""
    begin, go_on = _thread.start_new_thread, threading.Event()
    ending: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    told: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Calls(queue.SimpleQueue[Callable[[], object]]):
        def empty(self) -> bool:
            is_empty = super().empty()
            if not go_on.is_set():
                ending.put(threading.current_thread())
                go_on.wait(SOON)
            return is_empty

    line = Line("ringfence-test")
    line._calls = Calls()
    line(lambda: told.put(1))
    first = ending.get(timeout=SOON)

    def late(main: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
        def start() -> None:
            go_on.set()
            first.join(SOON)
            main(*arguments)

        return begin(start, ())

    monkeypatch.setattr("_thread.start_new_thread", late)
    line(lambda: told.put(2))
    assert [told.get(timeout=SOON) for _ in range(2)] == [1, 2]


def test_the_log_is_called_in_order_by_one_thread_at_a_time_which_ends() -> None:
    line, told, threads = Line("ringfence-test"), list[int](), set[threading.Thread]()

    def call(number: int) -> None:
        threads.add(threading.current_thread())
        told.append(number)
        if number % 7 == 0:
            sys.exit(1)

    for number in range(200):
        line(partial(call, number))
        if number % 3 == 0:
            until(partial(told.__contains__, number), "it is called")
    line.finish(SOON)
    assert told == list(range(200))
    threads.discard(threading.current_thread())
    until(lambda: not any(one.is_alive() for one in threads), "they end")


def test_a_log_is_finished_though_a_thread_is_refused_at_that_moment(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, nobody called what was in the queue, and the end of the program waited for it."""
    begins, go_on = threading.Event(), threading.Event()

    def refuse(*_: Any) -> bool:
        begins.set()
        go_on.wait()
        return False

    monkeypatch.setattr("ringfence._threads.begin", refuse)
    line, told = Line("ringfence-test"), threading.Event()
    calling = background(lambda: line(told.set))
    begins.wait()
    finishing = background(lambda: line.finish(SOON))
    time.sleep(0.1)
    go_on.set()
    calling.result(SOON)
    assert told.wait(SOON / 2)
    finishing.result(SOON)


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence._threads.begin", lambda *_: False)


def test_a_log_that_is_slow_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, the wait for the thread had a bound, but not the time for writing what the thread had left."""
    refuse_threads(monkeypatch)
    line, told = Line("ringfence-test"), list[int]()

    def write(number: int) -> None:
        told.append(number)
        time.sleep(0.3)

    for number in range(9):
        assert not line(partial(write, number))
    monkeypatch.setattr("ringfence._threads._WRITERS", [line])
    written(0.2)
    assert told in ([], [0])
    assert f"{9 - len(told)} lines of this log are missing" in caplog.text
    assert len(line) == 0


def test_an_interrupt_ends_what_a_program_writes_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, such an interrupt was swallowed, by each line anew."""
    refuse_threads(monkeypatch)
    line, told = Line("ringfence-test"), list[str]()
    for call in (_thread.interrupt_main, partial(told.append, "next")):
        line(call)
    with pytest.raises(KeyboardInterrupt):
        line.finish(SOON)
    line.finish(SOON)
    assert told in ([], ["next"])
    assert len(line) == 0


def test_a_thread_that_cannot_begin_for_any_reason_leaves_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, an unexpected error kept the turn taken for ever."""
    line, told = Line("ringfence-test"), queue.SimpleQueue[str]()

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", fail)
        line(lambda: told.put("without a thread of `threading`"))
        assert told.get(timeout=SOON)
        until(lambda: not line._turn.locked(), "it ends")
        patched.setattr("_thread.start_new_thread", fail)
        assert not line(lambda: told.put("later"))
    assert line.go_on()
    assert told.get(timeout=SOON) == "later"


def test_a_program_that_ends_writes_its_log_without_room_for_a_thread(
    node: Played, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve(node, [])
    client = ringfence.Client(node.url)
    client.adopt(FIRST, timeout=SOON).into_id()
    written(SOON)
    room = Room(monkeypatch)
    room.is_full = True
    client._runner().call_soon(LOG.warning, "the end is %s", "near")
    until(lambda: room.refused > 0 and not _WRITERS[0]._turn.locked(), "a thread was refused")
    written(SOON)
    assert "the end is near" in caplog.text
    room.is_full = False
    client.close()
