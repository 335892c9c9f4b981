//! Why a cell usually comes to its mark; `expected.rs` has the reasons of cells that are special.

use crate::fault::Fault;
use crate::judge::Mark;

/// For a column and a mark.
pub(super) const WHYS: [(Fault, Mark, &str); 29] = [
    (
        Fault::None,
        Mark::Lost,
        "A plain SET succeeds even if another holder has set the key: it excludes nobody.",
    ),
    (Fault::Crash, Mark::Stuck, "A dead holder releases nothing. The lock ends when it times out."),
    (Fault::Crash, Mark::StuckForEver, "A dead holder releases nothing, and this lock has no timeout."),
    (Fault::Crash, Mark::Well, "The lock ended with the holder's connection."),
    (Fault::PauseBeforeWrite, Mark::Lost, PAUSED_LOST),
    (Fault::PauseBeforeWrite, Mark::Fenced, PAUSED_FENCED),
    (Fault::PauseBeforeWrite, Mark::Stuck, PAUSED_STUCK),
    (Fault::PauseBeforeRead, Mark::Lost, PAUSED_LOST),
    (Fault::PauseBeforeRead, Mark::Fenced, PAUSED_FENCED),
    (Fault::PauseBeforeRead, Mark::Stuck, PAUSED_STUCK),
    (
        Fault::LostAcquire,
        Mark::Stuck,
        "A holds the lock and does not know it. Nobody can use it until it times out.",
    ),
    (Fault::LostAcquire, Mark::StuckForEver, "A holds the lock and does not know it, and nothing ends it."),
    (
        Fault::LostAcquire,
        Mark::Well,
        "A found out that it holds the lock, by repeating its request or reading the lock.",
    ),
    (
        Fault::LostRelease,
        Mark::Lost,
        "A's release had worked. A repeated it, because the answer was lost, and so deleted the lock of B: C got the lock \
         as well.",
    ),
    (
        Fault::LostRelease,
        Mark::Well,
        "A repeated its release. The lock was no longer A's, so nothing happened.",
    ),
    (
        Fault::Failover,
        Mark::Lost,
        "The server that took over did not know the lock, and granted it to B as well.",
    ),
    (
        Fault::Failover,
        Mark::Fenced,
        "The server that took over granted the lock to B as well; the storage rejected A.",
    ),
    (Fault::Failover, Mark::Well, "After the failure, nobody else got the lock while A could still write."),
    (Fault::Empty, Mark::Lost, "The server forgot the lock, and granted it to B as well."),
    (
        Fault::Empty,
        Mark::Fenced,
        "The server forgot the lock, and granted it to B as well; the storage rejected A.",
    ),
    (Fault::Empty, Mark::Well, "The other servers still had the lock: B did not get it."),
    (
        Fault::ServerAhead,
        Mark::Lost,
        "By the server's clock, the lock timed out at once: B got it while A held it.",
    ),
    (
        Fault::ServerAhead,
        Mark::Fenced,
        "By the server's clock, the lock timed out at once. The storage rejected A.",
    ),
    (Fault::ServerAhead, Mark::Well, "The end of this lock does not depend on the server's time of day."),
    (
        Fault::ServerBehind,
        Mark::StuckForEver,
        "By the server's clock, the lock of the dead holder ends an hour later.",
    ),
    (Fault::ServerBehind, Mark::Well, "The end of this lock does not depend on the server's time of day."),
    (
        Fault::RenewalDies,
        Mark::Lost,
        "The lock timed out and B got it. A did not notice, and the storage accepted its write.",
    ),
    (
        Fault::RenewalDies,
        Mark::Fenced,
        "The lock timed out and B got it. A did not notice; the storage rejected its write.",
    ),
    (Fault::HolderBehind, Mark::Well, "The holder's clock decides nothing."),
];

const PAUSED_LOST: &str = "The lock timed out during the pause, and B got it. A could not know that when it resumed, and the \
                           storage accepted its write.";
const PAUSED_FENCED: &str = "The lock timed out during the pause, and B got it. The storage has seen B since, and so it \
                             rejected A's write.";
const PAUSED_STUCK: &str = "This lock does not time out: B had to wait until A resumed and released it.";
