"""The client of Ringfence: leases with fencing tokens, renewed while you work, and given up in time.

    client = ringfence.Client(["http://10.0.0.1:7400", "http://10.0.0.2:7400", "http://10.0.0.3:7400"])
    with client.lock("accounts/42", ttl=15) as lease:
        write(lease.token)

`ringfence.aio` is the same for asyncio. The token goes with every access to what the lease protects, and the storage checks it:
`ringfence.django` and `ringfence.sqlalchemy` help with PostgreSQL.

States of a lease: `held`, confirmed lately; `unsure`, two thirds of its time have passed without a renewal; `lost`, it has ended, or
may have, for good; `released`. Time counts from when the last confirmed request was *sent*, on a clock that keeps running while the
machine sleeps. `lease.state` reads that clock, whatever threads and timers did.

How the client keeps its rules, and where that stands:

- *An outcome that is not known stays unknown* until a 2xx or a refusal resolves it (`_outcome`, `_cluster`), and however an acquire
  ends, what may have been granted is given back (`_acquire`).
- *A loss is final, and stops what must stop before it tells anybody else* (`_held`). It is found by a timer, not by a task: programs
  cancel tasks that they do not know (`_keeper`).
- *No lock between threads and the loop*: a signal handler may call anything (`_signal`, `_runner`).
- *A handle belongs to whoever has it*. The end of a block releases the lease of that block and no other (`_blocks`), a dropped handle
  is released, and nothing that the client keeps refers to it (`_sync`, `aio`).
- *A release is nobody's part*: no cancellation, timeout, interrupt or end takes it along (`_releases`), and whoever leaves a lease,
  `close` and the collector, too, keeps it for `hold_at_least` (`_leaving`).
- *Calls that begin together share requests* (`_batch`). Renewals have a connection of their own (`_server`); waits and other calls
  take turns (`_turns`).
"""

from . import aio
from ._clock import Clock, Moment
from ._hooks import Hooks, LeaseView
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
    "Hooks",
    "Invalid",
    "Lease",
    "LeaseView",
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
