"""The client of Ringfence: leases with fencing tokens, renewed while you work, and given up in time.

    client = ringfence.Client(["http://10.0.0.1:7400", "http://10.0.0.2:7400", "http://10.0.0.3:7400"])
    with client.lock("accounts/42", ttl=15) as lease:
        write(lease.token)

`ringfence.aio` is the same for asyncio. The token goes with every access to what the lease protects, and the storage checks it:
`ringfence.django` and `ringfence.sqlalchemy` help with PostgreSQL.

States of a lease: `held`, confirmed lately; `unsure`, two thirds of its time have passed without a renewal; `lost`, it has ended, or
may have, for good; `released`. Time counts from when the last confirmed request was *sent*, on a clock that keeps running while the
machine sleeps. `lease.state` reads that clock, whatever threads and timers did.
"""

from . import aio
from ._clock import Clock, Moment
from ._lifetime import State
from ._sync import Client, Lease, Lock
from ._wire import Claim
from .errors import (
    Blocker,
    Closed,
    Error,
    Held,
    Invalid,
    LossReason,
    Lost,
    Rejected,
    Stale,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unknown,
)

__all__ = [
    "Blocker",
    "Claim",
    "Client",
    "Clock",
    "Closed",
    "Error",
    "Held",
    "Invalid",
    "Lease",
    "Lock",
    "LossReason",
    "Lost",
    "Moment",
    "Rejected",
    "Stale",
    "State",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unknown",
    "aio",
]
