//! Why a cell usually comes to its mark; `expected.rs` has the reasons of cells that are special.

use crate::expected::reasons;
use crate::fault::Fault;
use crate::judge::Mark;

/// For columns and a mark.
const WHYS: &str = "
    0 L: A plain SET succeeds even if another holder has set the key: it excludes nobody.
    C T: A dead holder releases nothing. The lock ends when it times out.
    C ∞: A dead holder releases nothing, and this lock has no timeout.
    C ·: The lock ended with the holder's connection.
    P Q L: The lock timed out during the pause, and B got it. A could not know that when it resumed, and the storage accepted \
      its write.
    P Q f: The lock timed out during the pause, and B got it. The storage has seen B since, and so it rejected A's write.
    P Q T: This lock does not time out: B had to wait until A resumed and released it.
    A T: A holds the lock and does not know it. Nobody can use it until it times out.
    A ∞: A holds the lock and does not know it, and nothing ends it.
    A ·: A found out that it holds the lock, by repeating its request or reading the lock.
    R L: A's release had worked. A repeated it, because the answer was lost, and so deleted the lock of B: C got the lock as \
      well.
    R ·: A repeated its release. The lock was no longer A's, so nothing happened.
    F L: The server that took over did not know the lock, and granted it to B as well.
    F f: The server that took over granted the lock to B as well; the storage rejected A.
    F ·: After the failure, nobody else got the lock while A could still write.
    E L: The server forgot the lock, and granted it to B as well.
    E f: The server forgot the lock, and granted it to B as well; the storage rejected A.
    E ·: The other servers still had the lock: B did not get it.
    W+ L: By the server's clock, the lock timed out at once: B got it while A held it.
    W+ f: By the server's clock, the lock timed out at once. The storage rejected A.
    W+ W− ·: The end of this lock does not depend on the server's time of day.
    W− ∞: By the server's clock, the lock of the dead holder ends an hour later.
    N L: The lock timed out and B got it. A did not notice, and the storage accepted its write.
    N f: The lock timed out and B got it. A did not notice; the storage rejected its write.
    K ·: The holder's clock decides nothing.
";

/// For a column and a mark.
pub(super) fn whys() -> Vec<(Fault, Mark, &'static str)> {
    let whys = reasons(WHYS).filter_map(|(fault, mark, why)| Some((Fault::of(fault)?, Mark::of(mark)?, why)));
    whys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_reason() {
        assert!(WHYS.trim().lines().all(|line| line.contains(": ")));
        assert_eq!(whys().len(), reasons(WHYS).count());
    }
}
