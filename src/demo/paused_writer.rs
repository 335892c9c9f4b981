//! The first act: a writer that is paused past the end of its lease.

use std::path::Path;

use ringfence_wire::Key;

use super::accounts::{Accounts, Balances};
use super::databases::LateWrite;
use super::screen::Tone::{Bad, Good, Plain};
use super::writer::{Holds, Task, Writer, Wrote};
use super::{Demo, LONG_MS};

/// A's time-to-live.
const SHORT_MS: u32 = 4_000;
/// How long B is willing to stand in line.
const WAIT_MS: u32 = 30_000;
const BALANCE: u64 = 100;

impl Demo<'_> {
    pub(super) async fn a_writer_is_paused(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.screen.title("1. A writer is paused for longer than its lease lasts")?;
        let accounts = Accounts::create(dir, BALANCE)?;
        let key: Key = "accounts/42".parse()?;
        let mut nodes: Vec<_> = self.nodes.all().iter().map(|node| node.http).collect();
        let a = Task {
            name: "A".to_owned(),
            key: key.clone(),
            ttl_ms: SHORT_MS,
            wait_ms: 0,
            adds: 50,
            pauses: true,
            dir: dir.to_owned(),
            nodes: nodes.clone(),
        };
        nodes.rotate_left(1);
        let b = Task {
            name: "B".to_owned(),
            ttl_ms: LONG_MS,
            wait_ms: WAIT_MS,
            adds: 30,
            pauses: false,
            nodes,
            ..a.clone()
        };

        let mut a = Writer::start(a)?;
        let a_holds = a.holds().await?;
        let text = format!("A acquires {key} for {} s, and reads {}.", SHORT_MS / 1_000, a_holds.reads);
        self.screen.grant(&text, &format!("token {}", a_holds.token))?;
        a.stopped().await?;
        self.screen.event(&format!(
            "A looks again: its lease has {:.1} s left. Before it can write it is\n\
             stopped (SIGSTOP to pid {}), as by a garbage collection.",
            f64::from(a_holds.left_ms) / 1e3,
            a.pid()
        ))?;
        let mut b = Writer::start(b)?;
        self.screen.event(&format!("B asks another node for {key}, and is willing to wait."))?;
        let b_holds = b.holds().await?;
        let text = format!("A's lease has run out: B acquires, and reads {}.", b_holds.reads);
        self.screen.grant(&text, &format!("token {}", b_holds.token))?;
        self.live.push((b_holds.lease_id, b_holds.token));
        let b_wrote = b.wrote().await?;
        let between = accounts.read()?;
        self.screen.event(&format!("B adds 30, and writes {}.", b_wrote.balance))?;
        a.resume()?;
        let a_wrote = a.wrote().await?;
        let text =
            format!("A goes on (SIGCONT) and knows of nothing: it adds 50, and writes {}.", a_wrote.balance);
        self.screen.event(&text)?;

        self.late =
            Some(LateWrite { key, a: (a_holds.token, a_wrote.balance), b: (b_holds.token, b_wrote.balance) });
        self.compare((&a_holds, &a_wrote), (&b_holds, &b_wrote), between, accounts.read()?)
    }

    /// What became of the writes: `between` stood in the files before A's, `end` afterwards.
    fn compare(
        &mut self,
        (a_holds, a_wrote): (&Holds, &Wrote),
        (b_holds, b_wrote): (&Holds, &Wrote),
        between: Balances,
        end: Balances,
    ) -> anyhow::Result<()> {
        let (a, b) = (a_holds.token, b_holds.token);
        let (by_a, by_b) = (a_wrote.balance, b_wrote.balance);
        let rises = self.claims.rises(a) && self.claims.rises(b);
        self.claims.check(rises, format!("B's token, {b}, is larger than A's, {a}."))?;
        let both_have_b =
            b_wrote.rejected_below.is_none() && between == Balances { guarded: by_b, plain: by_b };
        self.claims.check(both_have_b, "B's write landed in both files.")?;
        let rejected = a_wrote.rejected_below == Some(b) && end.guarded == by_b;
        self.claims.check(rejected, "The guarded file rejected A's late write, and holds what B wrote.")?;
        let lost = end.plain == by_a && by_a != by_b;
        self.claims.check(lost, "The other file took it: what B wrote was lost.")?;

        self.screen.text("")?;
        for (left, right) in [
            ((Plain, "The guarded file".to_owned()), (Plain, "The file that trusts leases".to_owned())),
            ((Good, format!("B writes {by_b} with {b}: accepted")), (Good, format!("B writes {by_b}"))),
            (
                (Good, format!("A writes {by_a} with {a}: REJECTED,")),
                (Bad, format!("A writes {by_a}: it lands")),
            ),
            (
                (Good, format!("  {a} is below the fence, {b}")),
                (Bad, "  as nobody compares anything".to_owned()),
            ),
            (
                (Good, format!("It holds {}", end.guarded)),
                (Bad, format!("It holds {}: B's 30 are lost", end.plain)),
            ),
        ] {
            self.screen.columns(left, right)?;
        }
        Ok(())
    }
}
