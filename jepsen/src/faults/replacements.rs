//! Nodes that are replaced under their ids at other addresses while their old processes still run.
//!
//! An operator replaces a machine that hangs, and it may wake up. Its old process then still considers itself a member, and
//! others may still have connections to it.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ringfence_harness::Reply;
use ringfence_laws::history::Fault;
use tokio::time::sleep;

use super::Scene;
use crate::nemesis::Nemesis;
use crate::plan::pairs;
use crate::wires::Trouble;

/// By then a thawed process follows no leader, and would vote.
const FOLLOWS_NOBODY: Duration = Duration::from_millis(1_500);
/// Bounds one request to the old process.
const LOOK: Duration = Duration::from_secs(1);

impl Scene<'_> {
    /// Sets the stage so that a vote of the old process would matter: every other node has asked it for a vote before, over a
    /// connection that is still open; and while it is awake, that half of the others loses the leader which lacks only its vote.
    pub(super) async fn replace(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let &[id] = nodes else { bail!("one node at a time is replaced, not {}", nodes.len()) };
        let field = self.field;
        let _alone = field.taking_data().await?;
        let all: Vec<u64> = (1..=field.nodes()).collect();
        let _held = field.hold(&all).await;
        let fault = self.begun(Nemesis::Replace, nodes, "");
        let others: Vec<u64> = all.iter().copied().filter(|other| *other != id).collect();
        for other in &others {
            field.lead(*other).await?;
        }
        let node = field.cluster().node(id);
        let (then, _) = field.look(node).await.context("it gives no answer before it is frozen")?;
        node.stop()?;
        node.stands_still().await?;
        field.lose(id);
        field.remove(id).await?;
        field.leave_behind(id).await?;
        field.start_anew(id)?;
        field.take_in(id).await?;
        field.has_data_again(id);

        let before = field.term().await.context("no node tells its term")?;
        let old = {
            let mut left = field.left_behind();
            let old = left.last_mut().context("nothing was left behind")?;
            old.resume()?;
            old.client().within(LOOK)
        };
        sleep(FOLLOWS_NOBODY).await;
        // The last of them leads.
        let (apart, with_leader) = others.split_at(others.len() / 2);
        field
            .wires()
            .trouble(Trouble::Cut, &[pairs(apart, with_leader), pairs(with_leader, apart)].concat())?;
        sleep(lasts).await;
        field.wires().ease(Trouble::Cut)?;
        for other in &all {
            field.lead(*other).await?;
        }
        let after = field.term().await.context("no node tells its term")?;
        ensure!(after > before, "nobody was elected while the old process of node {id} was awake");
        let now = match old.cluster().await {
            Ok(Reply::Done { body, .. }) => format!("is in term {} ({:?})", body.term, body.role),
            _ => "does not answer".to_owned(),
        };
        let what = format!(
            "node {id} frozen in term {then}, replaced elsewhere, and thawed; elections from term {before} to {after} while \
             its old process is awake, which {now}"
        );
        Ok(self.over(Fault { what, ..fault }))
    }
}
