"""Ctrl-C at any step of the main thread: the interrupted code learns of it, and the key does not stay held."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from cluster import until

import ringfence
from ringfence.testing import FakeCluster

OPCODES = {code for name, code in dis.opmap.items() if name.startswith("CALL")}
RETURNS = {code for name, code in dis.opmap.items() if name.startswith("RETURN")}
# An interrupt at the first step of these is as one that comes before the call: nothing can be done about it.
MUST_BEGIN = {"Lock.__exit__", "Lease.__enter__", "Lease.__exit__", "Lease.release", "Client.close"}


def qualified(frame: FrameType) -> str:
    """The name of the method that a frame runs."""
    kind = type(frame.f_locals["self"]).__name__ + "." if "self" in frame.f_locals else ""
    return kind + frame.f_code.co_name


class At:
    """Interrupts this thread at its n-th step. A step is where Python may interrupt: at the start of a function, and after a call."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.count, self.where = list(steps), 0, list[str]()
        self._after_call: dict[FrameType, bool] = {}

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._after_call.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        is_ours = frame.f_code.co_filename == __file__
        if event == "call":
            frame.f_trace_opcodes = True
            caller = frame.f_back
            is_first = qualified(frame) in MUST_BEGIN and caller and caller.f_code.co_filename == __file__
            if not is_first and not is_ours:
                self._step(frame)
        elif event == "opcode":
            is_after, code = self._after_call.get(frame, False), frame.f_code.co_code[frame.f_lasti]
            self._after_call[frame] = code in OPCODES
            # Returning the result of a call is no step: Python would interrupt inside the call, within its `try`.
            if is_after and not is_ours and code not in RETURNS:
                self._step(frame)
        elif event == "return":
            self._after_call.pop(frame, None)
        return self._trace

    def _step(self, frame: FrameType) -> None:
        if self.steps:
            if self.count == self.steps[0]:
                self.steps.pop(0)
                self.where.append(f"{qualified(frame)}:{frame.f_lineno}")
                raise KeyboardInterrupt
            self.count += 1


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeCluster]:
    with FakeCluster() as found:
        yield found


def block(client: ringfence.Client) -> None:
    with client.lock("k", ttl=600):
        pass


def lease_block(client: ringfence.Client) -> None:
    with client.lock("k", ttl=600).acquire():
        pass


def lead(client: ringfence.Client) -> None:
    client.lead("k", lambda lease: None, ttl=600)


def decorated(client: ringfence.Client) -> None:
    @client.lock("k", ttl=600)
    def work() -> None:
        pass

    work()


def by_hand(client: ringfence.Client) -> None:
    client.lock("k", ttl=600).acquire().release()


@pytest.mark.parametrize("work", [block, lease_block, by_hand, lead, decorated])
@pytest.mark.parametrize("gap", [None, 0, 9])
def test_an_interrupt_at_any_step_is_told_and_leaves_the_key_free(
    fake: FakeCluster, work: Callable[[ringfence.Client], None], gap: int | None
) -> None:
    """Interrupts `work` at each step in turn and, after `gap` more steps, a second time."""
    with fake.client() as client:
        work(client)
        step = 0
        while True:
            steps = (step,) if gap is None else (step, step + gap)
            interrupts, kept = At(*steps), None
            try:
                with interrupts:
                    work(client)
            except KeyboardInterrupt as error:
                # Kept, as by a program that cleans up before it ends. The traceback has all handles.
                kept = error
            if len(interrupts.steps) == len(steps):
                break
            assert kept is not None, f"swallowed: {interrupts.where}"
            until(
                lambda: not fake.holders("k") and not fake.waiters("k"),
                f"free after interrupts at {interrupts.where}",
                3,
            )
            step += 1
        assert step > 20


@pytest.mark.parametrize("gap", [None, 0])
def test_an_interrupt_at_any_step_of_close_is_told_and_it_is_closed(
    fake: FakeCluster, gap: int | None
) -> None:
    step = 0
    while True:
        client = fake.client()
        lease = client.lock("k", ttl=600).acquire()
        steps = (step,) if gap is None else (step, step + gap)
        interrupts, kept = At(*steps), None
        try:
            with interrupts:
                client.close()
        except KeyboardInterrupt as error:
            kept = error
        if len(interrupts.steps) == len(steps):
            break
        assert kept is not None, f"swallowed: {interrupts.where}"
        until(lambda: not fake.holders("k"), f"closed after interrupts at {interrupts.where}", 3)
        assert lease.lost_reason == "released"
        step += 1
    assert step > 5
