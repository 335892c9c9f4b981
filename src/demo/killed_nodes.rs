//! Parts 2 and 3: the leader is killed, then all nodes.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Demo, granted};
use crate::poll;

/// Leases that are live, besides those of the writers, when all nodes are killed.
const MORE: u64 = 50;
const ELECTION_TIMEOUT: Duration = Duration::from_secs(20);

impl Demo<'_> {
    pub(super) async fn the_leader_is_killed(&mut self) -> anyhow::Result<()> {
        self.screen.title("2. The leader is killed")?;
        let leader = self.leader_other_than(None).await?;
        self.screen.event(&format!("Node {leader} is the leader: kill -9."))?;
        let killed = Instant::now();
        self.nodes.kill(leader);
        let token = self.acquire("C", "accounts/43").await?;
        let gap_s = killed.elapsed().as_secs_f64();
        let claim = format!("After the leader was killed, the next token, {token}, is the largest.");
        self.checks.check_largest(token, claim)?;
        let text = format!("C acquires accounts/43, {gap_s:.2} s after the kill.");
        self.screen.grant(&text, &format!("token {token}"))?;
        let next = self.leader_other_than(Some(leader)).await?;
        self.nodes.start()?;
        self.nodes.ready().await?;
        Ok(self
            .screen
            .event(&format!("Node {next} is the leader now; node {leader} is back, with its old data."))?)
    }

    pub(super) async fn all_nodes_are_killed(&mut self) -> anyhow::Result<()> {
        self.screen.title("3. All nodes are killed")?;
        let mut tokens = Vec::new();
        for number in 1..=MORE {
            tokens.push(self.acquire("D", &format!("accounts/{}", 100 + number)).await?);
        }
        let rise = tokens.iter().all(|&token| self.checks.is_largest(token));
        self.checks.check(rise, format!("Each of the next {MORE} tokens is larger than the one before."))?;
        let (first, last) = (tokens[0], tokens[tokens.len() - 1]);
        let text = format!("D acquires {MORE} keys, each with its own lease.");
        self.screen.grant(&text, &format!("tokens {first} to {last}"))?;

        self.nodes.kill_all()?;
        self.screen.event("kill -9 of all three: no process of the cluster is left.")?;
        self.nodes.start()?;
        self.nodes.ready().await?;
        self.screen.event("All three are restarted on their data, and ready.")?;
        let mut kept = 0;
        for &(lease_id, token) in &self.live {
            let lease = granted(&self.client, lease_id).await;
            kept += usize::from(lease.with_context(|| format!("lease {token} is lost"))?.token == token);
        }
        let text = format!("All {} leases that were live still are, with their tokens.", self.live.len());
        self.checks.check(kept == self.live.len(), &*text)?;
        self.screen.event(&text)?;
        let token = self.acquire("E", "accounts/44").await?;
        let claim = format!("After all nodes were killed, the next token, {token}, is the largest.");
        self.checks.check_largest(token, claim)?;
        Ok(self.screen.grant("E acquires accounts/44.", &format!("token {token}"))?)
    }

    /// Waits for a leader other than `former`.
    async fn leader_other_than(&self, former: Option<u16>) -> anyhow::Result<u16> {
        poll::until(ELECTION_TIMEOUT, "no leader was elected", async || {
            // A node that is being elected, or was killed, does not answer yet.
            let leader = self.client.cluster().await.ok().and_then(|status| status.leader);
            Ok(leader.and_then(|leader| u16::try_from(leader).ok()).filter(|&id| Some(id) != former))
        })
        .await
    }
}
