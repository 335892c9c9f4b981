//! The second and the third act: nodes are killed, first the leader and then all.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::{sleep, timeout};

use super::Demo;

/// How many leases are live beside those of the story when all nodes are killed.
const MORE: u64 = 50;
/// How long the nodes may take to agree on another leader.
const ELECTED_WITHIN: Duration = Duration::from_secs(20);

impl Demo<'_> {
    pub(super) async fn the_leader_is_killed(&mut self) -> anyhow::Result<()> {
        self.screen.title("2. The leader is killed")?;
        let leader = self.leader_other_than(None).await?;
        self.screen.event(&format!("Node {leader} leads: kill -9."))?;
        let killed = Instant::now();
        self.nodes.kill(leader);
        let token = self.acquire("C", "accounts/43").await?;
        let gap_s = killed.elapsed().as_secs_f64();
        let rises = self.claims.rises(token);
        self.claims.check(
            rises,
            format!("After the leader's death the next token, {token}, was larger than all before."),
        )?;
        let text = format!("C acquires accounts/43, {gap_s:.2} s after the kill.");
        self.screen.grant(&text, &format!("token {token}"))?;
        let next = self.leader_other_than(Some(leader)).await?;
        self.nodes.start()?;
        self.nodes.ready().await?;
        self.screen.event(&format!("Node {next} leads now; node {leader} is back, on the data it had."))?;
        Ok(())
    }

    pub(super) async fn all_nodes_are_killed(&mut self) -> anyhow::Result<()> {
        self.screen.title("3. All nodes are killed")?;
        let mut tokens = Vec::new();
        for number in 1..=MORE {
            tokens.push(self.acquire("D", &format!("accounts/{}", 100 + number)).await?);
        }
        let rise = tokens.iter().all(|&token| self.claims.rises(token));
        self.claims.check(rise, format!("Each of the next {MORE} was larger than the one before."))?;
        let (first, last) = (tokens[0], tokens[tokens.len() - 1]);
        let text = format!("D acquires {MORE} more, each a lease of its own.");
        self.screen.grant(&text, &format!("tokens {first} to {last}"))?;

        self.nodes.kill_all()?;
        self.screen.event("kill -9 of all three at once: no process of the cluster is left.")?;
        self.nodes.start()?;
        self.nodes.ready().await?;
        self.screen.event("They were started again on their data, and are ready.")?;
        let mut standing = 0;
        for &(lease_id, token) in &self.live {
            let lease =
                self.client.lease(lease_id).await.with_context(|| format!("lease {token} is lost"))?;
            standing += usize::from(lease.token == token);
        }
        let text = format!("All {} leases that were live stand, each with its token.", self.live.len());
        self.claims.check(standing == self.live.len(), &*text)?;
        self.screen.event(&text)?;
        let token = self.acquire("E", "accounts/44").await?;
        let rises = self.claims.rises(token);
        self.claims.check(
            rises,
            format!("After the death of all the next token, {token}, was larger than all before."),
        )?;
        self.screen.grant("E acquires accounts/44.", &format!("token {token}"))?;
        Ok(())
    }

    /// Waits until a node knows who leads, and that it is not `other`.
    async fn leader_other_than(&self, other: Option<u16>) -> anyhow::Result<u16> {
        let look = async {
            loop {
                match self.client.cluster().await?.leader {
                    Some(leader) if Some(leader) != other => return Ok(leader),
                    _ => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(ELECTED_WITHIN, look).await.context("the nodes do not agree on a leader")?
    }
}
