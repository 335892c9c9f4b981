"""Says what an acquire waits for, once, after some seconds: a queue is silent, and so is a program that waits for itself."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from urllib.parse import quote

from . import _wire
from ._cluster import RETRY_FOR, Attempts, Cluster
from ._http import Request, Response
from ._threads import LOG
from .errors import Blocker, Error


async def tell_of_wait(cluster: Cluster, spec: _wire.Spec, own_tokens: Collection[int]) -> None:
    """Says who holds the keys, as far as this client may read them."""
    for claim in spec.claims:
        try:
            holders = await read_holders(cluster, claim.key)
        except Error as error:
            LOG.info("waits for %r, and cannot see who holds it: %s", claim.key, error)
            return
        for one in holders:
            by = "" if one.holder is None else f" by {one.holder.encode('unicode_escape').decode()}"
            own = ", which this client itself holds" if one.token in own_tokens else ""
            LOG.warning("waits for %r, which is held%s with token %d%s", claim.key, by, one.token, own)


async def read_holders(cluster: Cluster, key: str) -> list[Blocker]:
    """The leases that hold a key."""
    request = Request("GET", f"/v1/keys/{quote(key, safe='')}")
    attempts: Attempts[list[Blocker]] = Attempts(cluster, None, is_of_a_lease=False)
    return await attempts.call(request, partial(_read, key), RETRY_FOR)


def _read(key: str, response: Response) -> list[Blocker]:
    body = response.json()
    found = body.get("holders") if isinstance(body, dict) else None
    if not isinstance(found, list):
        raise ValueError("no holders")
    return _wire.blockers({"holders": [{**one, "key": key} for one in found if isinstance(one, dict)]})[0]
