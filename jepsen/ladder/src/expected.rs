//! The mark that each rung is expected to get under each fault, and the reason where it may surprise.

use crate::fault::Fault;
use crate::judge::Mark;
use crate::rung::etcd;

/// A line per rung; a mark per fault, in the order of [`Fault::COLUMNS`].
const TABLE: &str = "
  #   C   P   Q   A   R   F   E   W+  W−  N   K
  1   ∞   T   T   ∞   L   L   L   ·   ·   –   ·
  2   ∞   L   L   ∞   L   L   L   L   ∞   L   ·
  3   T   L   L   T   L   L   L   L   ∞   L   ·
  4   T   L   L   T   ·   L   L   L   ∞   L   ·
  5   T   L   L   ·   ·   L   L   L   ∞   L   ·
  6   T   L   L   ·   ·   L   L   L   ∞   L   ·
  7   T   L   L   ref ·   L   L   L   ·   L   L
  8   T   L   L   T   ·   ref L   L   ∞   L   ·
  9   T   L   L   T   ·   ref L   L   ∞   L   ·
  10  T   f   f   T   ·   ref x   f   ∞   f   ·
  11  T   f   Lx  T   ·   f   f   f   ∞   f   ·
  12  ·   T   T   ·   ·   L   –   ·   ·   –   ·
  13  ·   T   T   ·   ·   ·   –   ·   ·   –   ·
  14  T   L   L   ·   ·   ·   –   ·   ·   L   ·
  15  T   f   f   ·   ·   ·   –   ·   ·   f   ·
  16  T   L   L   ·   ·   ·   –   ·   ∞   L   ·
  17  T   f   f   ·   ·   ·   –   ·   ∞   f   ·
  18  T   L   L   ·   ·   ·   ·   ·   ·   L   ·
  19  T   f   f   ·   ·   ·   ·   ·   ·   f   ·
  20  T   L   L   T   ·   ·   ·   ·   ·   L   ·
  21  T   f   f   T   ·   ·   ·   ·   ·   f   ·
  22  T   f   f   –   –   ·   ·   ·   ·   f   ·
";

/// Cells beside the table's, and their marks.
const OTHERS: &str =
    "0:0:L 4:A2:T 4:F3:L 5:A2:T 7:A2:T 8:F2:L 8:F4:L 9:F2:L 10:F2:L 14:A3:∞ 18:A2:· 19:A2:· 20:A2:T 21:A2:T";

/// Why cells have their marks, where these may surprise: rungs and a fault, a colon, and the reason.
const REASONS: &str = "
    1 W−: This lock has no timeout, so clocks do not matter. If its holder dies, it is stuck with any clock (C).
    5 A2: The client reads the key back before its request arrives. It does not find its value, so it does not delete it.
    7 A2: The client misses a majority and deletes its value from all servers. Then its requests arrive, and set values that \
      nobody deletes.
    7 A: Too few servers answer in time. The client deletes its value from all of them, as the specification asks.
    7 F: The lock stood on three servers, because two could not be reached. One of the three was replaced by its replica, \
      which did not have it.
    7 E: The lock stood on three servers, because two could not be reached. One of the three restarted without its data.
    7 W+: The lock stood on three servers, because two could not be reached. The clock of one of the three jumped.
    7 W−: One clock of five is wrong; the other four servers let the lock end.
    7 K: With a correct clock, the same client stops in time; each round shows that first.
    8 F: WAIT returns 0, so the client deletes the key and does not use the lock.
    8 F2: WAIT returns 1, but that replica is lost with the master, and another one is promoted.
    8 F4: WAIT asks for what the master had written when its own connection sent its last command (Redis 7.0.15, server.c: \
      woff), and not for the SET: it answers 1. A new connection asks for more, if it begins with a command.
    9 A: It does not repeat the acquire (before 3.37 it did, and then counted as a holder twice), and starts its watchdog only \
      after an answer. The lock ends with its timeout, 30 s by default.
    9 F: If replicas are connected, it sends WAIT, and takes 0 for a failure (checkLockSyncedSlaves). By its source, it does \
      not if none is connected, or if it is configured for one server, at an address that moves: then it is as lock 4.
    10 F: As RLock. But the refused lock is not deleted: it stays until it times out.
    10 F2: The counter is lost with the lock. Both holders get the same token, and no storage can tell them apart.
    10 E: The counter starts again from 1. The storage rejects the live holder until the counter has caught up.
    11 Q: The paused holder registers its value when it resumes, later than the live holder. The storage accepts its write and \
      rejects the live holder's. No update is overwritten, because the storage compares, but the wrong holder wins: random \
      values have no order.
    12 13 C: The kernel of the crashed process closes its connection. That of a machine without power does not: the row is \
      then locked until the server's TCP keepalive gives up, after more than two hours by the defaults of Linux.
    12 F: The transaction ends with its connection, and the lock with it. The holder works elsewhere and sends the database \
      nothing, so it does not notice.
    16 17 A: The client closes its session after the error, as `defer session.Close()` does: that revokes the lease, and \
      deletes the key. By its source Lock leaves the key behind: a client that keeps the session and does not try again keeps \
      the lock as well.
    16 17 W−: etcd 3.4 orders the leases that have to end by the time of day (expireExists of lease/lessor.go in v3.4.23): one \
      that was last renewed before the clock fell behind ends an hour late. Since 3.5 it compares times of the monotonic clock \
      (pull request etcd-io/etcd#12292), and the lock ends in time.
    14 A: The client finds its node by the GUID in its name. Curator has that since 0.4.2 (2011, commit 31cffd7), ZooKeeper's \
      documentation of the recipe since 3.5.0 and 3.4.14 (ZOOKEEPER-1262).
    14 A3: The client believes that the acquire failed. Its node stays as long as its session: as long as its process lives.
    14 W+: ZooKeeper times its sessions by System.nanoTime, not by the time of day (ExpiryQueue).
    18 A2: The client has asked again with the same lease id. That lease has ended when the late request arrives, and an ended \
      lease is not granted again.
    22 A: Its client is that of 18 in Rust, whose own tests let answers get lost: it repeats the acquire with the same lease id.
    22 R: As with A.
    22 N: `ringfence lock` stands still, and its supervisor ends the program when the lease does.
    20 21 A: The node has sent its answer: so it takes the client for the holder. What a client that has gone was never sent \
      is taken back 2 s later.
";

/// Why a cell has its mark, where that may surprise.
pub(crate) fn reason(rung: u8, fault: Fault) -> Option<&'static str> {
    let is_it = |of: &str, letters: &str| number(of) == rung && fault.is_called(letters);
    reasons(REASONS).find(|(of, letters, _)| is_it(of, letters)).map(|(.., why)| why)
}

/// What the lines of such a text say: each word but the last before the colon, that last word, and the reason.
pub(crate) fn reasons(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let lines = text.lines().filter_map(|line| line.trim_start().split_once(": "));
    lines.flat_map(|(words, why)| {
        let (each, last) = words.rsplit_once(' ').unwrap_or_default();
        each.split(' ').map(move |one| (one, last, why))
    })
}

/// No rung has the number that is none.
fn number(rung: &str) -> u8 {
    rung.parse().unwrap_or(u8::MAX)
}

/// Cells that show the most in a minute or two.
const QUICK: &str = "0:0 3:R 4:P 4:W+ 5:A 7:K 8:F2 10:F2 11:Q 12:F 15:P 17:Q 18:P 19:P 20:F 21:P 21:E 22:P";

/// Whether a cell is among those of a quick run.
pub(crate) fn is_quick(rung: u8, fault: Fault) -> bool {
    QUICK.split(' ').any(|cell| cell == format!("{rung}:{}", fault.letters()))
}

/// The faults that a rung is played under, each with the mark that is expected; those that do not apply to it as well.
pub(crate) fn cells(rung: u8) -> Vec<(Fault, Mark)> {
    let others = OTHERS.split(' ').filter_map(|cell| {
        let [of, letters, mark] = cell.split(':').collect::<Vec<_>>()[..] else { return None };
        (number(of) == rung).then_some((Fault::of(letters)?, Mark::of(mark)?))
    });
    let line = TABLE.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut of_rung = line.filter(|line| line.first() == Some(&rung.to_string().as_str()));
    let line = of_rung.next();
    let marks = line.into_iter().flatten().skip(1).map(|text| Mark::of(text).unwrap_or(Mark::Unknown));
    let cells = Fault::COLUMNS.into_iter().zip(marks).chain(others);
    let mut cells: Vec<_> = cells.map(|(fault, mark)| (fault, of_version(rung, fault, mark))).collect();
    cells.sort();
    cells
}

/// The table holds for the versions of Debian 12; this is where others differ.
fn of_version(rung: u8, fault: Fault, mark: Mark) -> Mark {
    match (rung, fault) {
        (16 | 17, Fault::ServerBehind) if !etcd::looks_at_time_of_day() => Mark::Well,
        _ => mark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rung::rungs;

    #[test]
    fn every_rung_that_is_played_has_a_mark_for_every_fault() {
        for rung in rungs() {
            let cells = cells(rung.number);
            assert!(cells.iter().all(|(_, mark)| *mark != Mark::Unknown), "{cells:?}");
            assert!(cells.len() >= if rung.number == 0 { 1 } else { Fault::COLUMNS.len() }, "{cells:?}");
        }
    }

    #[test]
    fn a_fault_beside_the_columns_has_a_cell_and_every_reason_too() {
        let cells: Vec<_> =
            (0..=22).flat_map(|rung| cells(rung).into_iter().map(move |(it, _)| (rung, it))).collect();
        for fault in Fault::OTHERS {
            assert!(cells.iter().any(|(_, it)| *it == fault), "{fault:?}");
            assert!(Fault::COLUMNS.contains(&fault.column()) || fault == Fault::None, "{fault:?}");
        }
        let is_cell = |of: &str, letters: &str| {
            cells.iter().any(|(rung, fault)| *rung == number(of) && fault.is_called(letters))
        };
        for (rung, letters, why) in reasons(REASONS) {
            assert!(is_cell(rung, letters), "{why}");
        }
        for cell in OTHERS.split(' ').chain(QUICK.split(' ')) {
            let [rung, letters, ..] = cell.split(':').collect::<Vec<_>>()[..] else { panic!("{cell}") };
            assert!(is_cell(rung, letters), "{cell}");
        }
        assert!(REASONS.trim().lines().all(|line| line.contains(": ")));
        for (_, fault) in cells {
            assert!(Fault::COLUMNS.contains(&fault) || Fault::OTHERS.contains(&fault), "{fault:?}");
            assert!(!fault.how().is_empty(), "{fault:?}");
        }
    }
}
