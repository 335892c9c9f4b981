//! A bad build decides by newer rules before they are raised: the nodes compare what they did, and it must stop.

use std::time::Duration;

use anyhow::Context;
use ringfence_harness::until;
use ringfence_laws::history::Fault;
use tokio::time::Instant;

use super::scene::{Age, Scene};

/// Within this time the bad build must stop.
const STOPS_WITHIN: Duration = Duration::from_secs(30);
/// Part of what it says then.
const WHY: &str = "did not do the same";

impl Scene<'_> {
    pub(super) async fn witness(&mut self) -> anyhow::Result<()> {
        // The old program founded the cluster: no newer rules are in use.
        for id in self.shuffled() {
            self.turn(id, Age::New).await?;
        }
        for leads in [false, true] {
            let leader = self.field.leader().await.context("nobody leads")?;
            let id = if leads { leader } else { leader % self.field.nodes() + 1 };
            self.go_wrong(id, leads).await?;
        }
        Ok(())
    }

    /// A node becomes a bad build, and must stop, even if it leads. Then it is added anew.
    async fn go_wrong(&mut self, id: u64, leads: bool) -> anyhow::Result<()> {
        let (field, node) = (self.field, self.field.cluster().node(id));
        let begun = self.begun(id, String::new());
        field.terminate(id).await?;
        self.start(id, Age::Early).await?;
        if leads {
            field.lead(id).await?;
        }
        let since = Instant::now();
        let ends = async || node.take_ended().transpose();
        let role = if leads { "the leader" } else { "a follower" };
        let what = match until(STOPS_WITHIN, "the bad build stops", ends).await {
            Ok(status) => format!(
                "node {id}, {role}, stopped as a bad build after {:.1} s ({})",
                since.elapsed().as_secs_f64(),
                status?
            ),
            Err(late) => format!("node {id}, {role}: {late}"),
        };
        let log = node.log();
        if !log.lines().last().unwrap_or_default().contains(WHY) {
            field.found(id, what.clone());
        }
        field.lose(id);
        node.use_program(self.program(Age::New));
        field.bring_back(id).await?;
        self.over(Fault { what, ..begun });
        Ok(())
    }
}
