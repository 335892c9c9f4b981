from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from cluster import Cluster
from played import Played

import ringfence

T = TypeVar("T")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """For tests that break no node."""
    with Cluster() as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ringfence.Client]:
    with ringfence.Client(cluster.urls) as found:
        yield found


@pytest.fixture
def node() -> Iterator[Played]:
    with Played() as found:
        yield found


@pytest.fixture
def other() -> Iterator[Played]:
    with Played() as found:
        yield found


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
    """Runs a call beside the test, which plays the node that answers it."""
    with ThreadPoolExecutor(8) as pool:

        def run(work: Callable[[], Any]) -> Future[Any]:
            return pool.submit(work)

        yield run


class JumpingClock:
    """The system's clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> ringfence.Moment:
        from ringfence._clock import now

        return now().after(self.ahead)

    def jump(self, seconds: float) -> None:
        self.ahead += int(seconds * 1e9)


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()
