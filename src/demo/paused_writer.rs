//! Part 1: a writer is paused past the end of its lease.

use std::path::Path;
use std::time::Duration;

use ringfence_client::Key;

use super::accounts::{Accounts, Balances};
use super::screen::Tone::{Bad, Good, Plain};
use super::writer::{Holds, Task, Writer, Wrote};
use super::{Demo, LONG_TTL};
use crate::nodes::Node;

/// A's ttl.
const SHORT_TTL: Duration = Duration::from_secs(4);
const BALANCE: u64 = 100;

impl Demo<'_> {
    pub(super) async fn a_writer_is_paused(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.screen.title("1. A writer is paused for longer than its lease lasts")?;
        let accounts = Accounts::create(dir, BALANCE)?;
        let key: Key = "accounts/42".parse()?;
        let mut urls: Vec<_> = self.nodes.all().iter().map(Node::url).collect();
        let a = Task {
            name: "A".to_owned(),
            key: key.clone(),
            ttl: SHORT_TTL,
            adds: 50,
            pauses: true,
            dir: dir.to_owned(),
            urls: urls.clone(),
        };
        urls.rotate_left(1);
        let b = Task { name: "B".to_owned(), ttl: LONG_TTL, adds: 30, pauses: false, urls, ..a.clone() };

        let mut a = Writer::start(a)?;
        let a_holds: Holds = a.next().await?;
        let text = format!("A acquires {key} for {} s, and reads {}.", SHORT_TTL.as_secs(), a_holds.reads);
        self.screen.grant(&text, &format!("token {}", a_holds.token))?;
        a.stopped().await?;
        self.screen.event(&format!(
            "A checks its lease: {:.1} s left. Before it can write, it is\n\
             stopped (SIGSTOP to pid {}), as by a garbage collection.",
            Duration::from_millis(a_holds.left_ms).as_secs_f64(),
            a.pid()
        ))?;
        let mut b = Writer::start(b)?;
        self.screen.event(&format!("B asks another node for {key} and waits in the queue."))?;
        let b_holds: Holds = b.next().await?;
        let text = format!("A's lease expires: B acquires, and reads {}.", b_holds.reads);
        self.screen.grant(&text, &format!("token {}", b_holds.token))?;
        self.live.push((b_holds.lease_id, b_holds.token));
        let b_wrote: Wrote = b.next().await?;
        let between = accounts.read()?;
        self.screen.event(&format!("B adds 30, and writes {}.", b_wrote.balance))?;
        a.resume()?;
        let a_wrote: Wrote = a.next().await?;
        self.screen
            .event(&format!("A resumes (SIGCONT), unaware: it adds 50, and writes {}.", a_wrote.balance))?;

        self.compare((&a_holds, &a_wrote), (&b_holds, &b_wrote), between, accounts.read()?)
    }

    /// Checks both writes. The files held `between` before A's write, and hold `end` after it.
    fn compare(
        &mut self,
        (a_holds, a_wrote): (&Holds, &Wrote),
        (b_holds, b_wrote): (&Holds, &Wrote),
        between: Balances,
        end: Balances,
    ) -> anyhow::Result<()> {
        let (a, b) = (a_holds.token, b_holds.token);
        let (by_a, by_b) = (a_wrote.balance, b_wrote.balance);
        let rises = self.checks.is_largest(a) && self.checks.is_largest(b);
        self.checks.check(rises, format!("B's token, {b}, is larger than A's, {a}."))?;
        let both_have_b =
            b_wrote.rejected_below.is_none() && between == Balances { guarded: by_b, plain: by_b };
        self.checks.check(both_have_b, "Both files took B's write.")?;
        let rejected = a_wrote.rejected_below == Some(b) && end.guarded == by_b;
        self.checks.check(rejected, "The guarded file rejected A's late write, and holds B's.")?;
        let lost = end.plain == by_a && by_a != by_b;
        self.checks.check(lost, "The other file took A's late write: B's write is lost.")?;

        self.screen.columns([
            ((Plain, "The guarded file".to_owned()), (Plain, "The file that trusts leases".to_owned())),
            ((Good, format!("B writes {by_b} with {b}: accepted")), (Good, format!("B writes {by_b}"))),
            (
                (Good, format!("A writes {by_a} with {a}: REJECTED,")),
                (Bad, format!("A writes {by_a}: accepted,")),
            ),
            (
                (Good, format!("  {a} is below the fence, {b}")),
                (Bad, "  as nothing compares tokens".to_owned()),
            ),
            (
                (Good, format!("It holds {}", end.guarded)),
                (Bad, format!("It holds {}: B's 30 are lost", end.plain)),
            ),
        ])?;
        Ok(())
    }
}
