"""Which node to ask next. Time is passed in; nothing here does I/O.

Every node takes every request, but followers forward it: the leader responds sooner. So the client asks the node that the last
response named as the leader, and otherwise the node that responded last. It avoids a node that failed for a while, even if
others still name it: twice as long each time that it does not answer at all.

A URL may lead to another cluster, and two clusters grant the same key at once. So a client belongs to the cluster of its first
definite response, and the response of another cluster is none. A node that gave one, or whose URL was learned from a response,
is used once it has *met* the client: it has answered a probe, and not for another cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ._outcome import NotSent
from .errors import Invalid

_AVOIDED_FOR = 3.0
_DOUBLINGS = 5
# A cluster has no more.
_MAX_LEARNED = 16


@dataclass(frozen=True)
class Url:
    """Where a node listens."""

    is_https: bool
    host: str
    port: int
    authority: str = field(compare=False)

    def __str__(self) -> str:
        return f"{'https' if self.is_https else 'http'}://{self.authority}"

    @staticmethod
    def parse(text: object) -> Url:
        """Reads `https://host:port`. Raises `ValueError`."""
        if not isinstance(text, str):
            raise ValueError(f"a URL is a text, not {type(text).__name__}")
        url = urlsplit(text.strip())
        if url.scheme not in ("http", "https"):
            raise ValueError(f"{text!r} does not begin with https:// or http://")
        if url.path not in ("", "/") or url.query or url.fragment:
            raise ValueError(f"{text!r}: a node's URL has no path")
        host = url.hostname
        if not host or "@" in url.netloc or not re.fullmatch(r"[\x21-\x7e]+", url.netloc):
            raise ValueError(f"{text!r} is not of the form https://host:port")
        is_https = url.scheme == "https"
        port = url.port or (443 if is_https else 80)
        return Url(is_https, host, port, url.netloc)


@dataclass(slots=True)
class Entry:
    """What is known of a node."""

    url: Url
    is_met: bool
    failed_at: float | None = None
    silences: int = 0
    """How many times in a row it did not answer."""
    is_proven: bool = False
    """Whether its last outcome was definite."""

    def is_healthy(self, now: float) -> bool:
        """Whether it has not failed for a while."""
        if self.failed_at is None:
            return True
        avoided_for: float = _AVOIDED_FOR * 2 ** min(max(self.silences - 1, 0), _DOUBLINGS)
        return now - self.failed_at > avoided_for


class Nodes:
    """The known nodes: the configured ones, then those learned from responses."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        learns: bool = True,
        is_resolved: Callable[[Url], bool] = lambda _: True,
    ) -> None:
        self._learns = learns
        self._is_resolved = is_resolved
        self.entries: list[Entry] = []
        for index, text in enumerate([urls] if isinstance(urls, str) else urls):
            try:
                url = Url.parse(text)
            except ValueError as error:
                raise Invalid(f"urls[{index}]", str(error)) from None
            if self.entries and url.is_https is not self.entries[0].url.is_https:
                raise Invalid(f"urls[{index}]", f"{text!r}: all URLs begin with https://, or none")
            if self._find(url) is None:
                self.entries.append(Entry(url, is_met=True))
        if not self.entries:
            raise Invalid("urls", "a client needs the URL of at least one node")
        self.is_https = self.entries[0].url.is_https
        self.configured = len(self.entries)
        """How many nodes are tried in turn."""
        self._preferred = self.entries[0]
        self._leader: Entry | None = None
        # What the last response named as the leader's URL, and its node.
        self._named: tuple[str | None, Entry | None] = None, None
        self.cluster: str | None = None

    def best(self, now: float) -> Entry:
        """The node to ask: the preferred one unless it failed lately, else the configured one that failed longest ago."""
        if self._is_usable(self._preferred, now):
            return self._preferred

        def order(entry: Entry) -> tuple[bool, float]:
            return not self._is_resolved(entry.url), -1.0 if entry.failed_at is None else entry.failed_at

        return min(self.entries[: self.configured], key=order)

    def has_another(self, now: float) -> bool:
        """Whether another node is asked if the best one fails."""
        return self.configured > 1 or self.best(now).url != self.entries[0].url

    def has_usable_besides(self, node: Entry, now: float) -> bool:
        """Whether another one may answer."""
        return any(self._is_usable(entry, now) for entry in self.entries if entry is not node)

    def check_cluster(self, node: Entry, cluster: str | None, is_definite: bool) -> None:
        """Checks for which cluster a node has responded. Raises `NotSent` if it is another: nothing was done for this client."""
        if cluster is None or cluster == self.cluster:
            return
        if self.cluster is None:
            self.cluster = cluster if is_definite else None
            return
        node.is_met = False
        raise NotSent(
            f"{node.url} answers for cluster {cluster!r}, this client belongs to cluster {self.cluster!r}: "
            "if that was replaced, make a new client"
        )

    def responded(self, node: Entry, leader: str | None, now: float) -> Entry | None:
        """Records a definite response, and the leader that it named. Returns the leader if it is to be met."""
        node.failed_at, node.silences, node.is_met, node.is_proven = None, 0, True, True
        self._leader = self._learn(leader)
        self._preferred = self._leader if self._leader is not None and self._leader.is_met else node
        found = self._leader
        if found is None or found.is_met or not found.is_healthy(now):
            return None
        # Until it answers.
        found.failed_at, found.silences = now, found.silences + 1
        return found

    def met(self, node: Entry) -> None:
        """Records that a node has answered a probe for this cluster."""
        node.failed_at, node.silences, node.is_met = None, 0, True
        if self._leader is node:
            self._preferred = node

    def failed(self, node: Entry, silent_since: float | None, now: float) -> None:
        """Records that a node gave no definite response. `silent_since`: when it was asked, if it gave none at all."""
        before, node.failed_at = node.failed_at, now
        if silent_since is None:
            node.silences = 0
        elif before is None or before < silent_since:
            # All that were sent before the first of them failed show one and the same outage.
            node.silences += 1
        node.is_met = node.is_met and node in self.entries[: self.configured]
        node.is_proven = False

    def _is_usable(self, entry: Entry, now: float) -> bool:
        return entry.is_met and entry.is_healthy(now) and self._is_resolved(entry.url)

    def _find(self, url: Url) -> Entry | None:
        return next(
            (entry for entry in self.entries if (entry.url.host, entry.url.port) == (url.host, url.port)),
            None,
        )

    def _learn(self, text: str | None) -> Entry | None:
        """The node at a URL that a response named, which may be new."""
        if self._named[0] != text:
            self._named = text, None if text is None else self._found(text)
        return self._named[1]

    def _found(self, text: str) -> Entry | None:
        try:
            url = Url.parse(text)
        except ValueError:
            return None
        known = self._find(url)
        is_own = url.is_https is self.is_https
        may_learn = self._learns and is_own and len(self.entries) < self.configured + _MAX_LEARNED
        if known is not None or not may_learn:
            return known
        self.entries.append(Entry(url, is_met=False))
        return self.entries[-1]
