//! Nodes that lose their data and are added again, and transfers of the leadership.

use std::time::Duration;

use anyhow::Context;
use ringfence_harness::{Client, Fate, Reply, until};
use ringfence_laws::history::Fault;
use ringfence_wire::Role;
use serde_json::json;
use tokio::time::sleep;

use super::{Scene, named};
use crate::field::Field;
use crate::nemesis::Nemesis;

/// Bounds adding a node again. Other faults may go on meanwhile.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Bounds a transfer of the leadership.
const LEADS_WITHIN: Duration = Duration::from_secs(30);
/// Bounds one request about members; and the pause before the next.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(200);
/// Under load a healthy member lags by a few entries.
const LAG_ENTRIES: u64 = 100;

impl Scene<'_> {
    /// First the nodes are started without their data: the others must not accept them.
    pub(super) async fn wipe(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let _alone = self.field.taking_data().await?;
        let _held = self.field.hold(nodes).await;
        let fault = self.begun(Nemesis::Wipe, nodes, format!("{} lost all data", named(nodes)));
        for id in nodes {
            self.field.lose(*id);
            self.field.cluster().node(*id).wipe()?;
            self.field.start(*id)?;
        }
        sleep(lasts).await;
        for id in nodes {
            let node = self.field.cluster().node(*id);
            if node.take_ended()?.is_none() && node.client().within(PATIENCE).is_ready().await {
                self.field.found(*id, "it was let back in without its data".to_owned());
            }
        }
        for id in nodes {
            self.field.bring_back(*id).await?;
        }
        Ok(self.over(fault))
    }

    /// To the next node if the drawn one leads already.
    pub(super) async fn transfer(self, nodes: &[u64]) -> anyhow::Result<Vec<Fault>> {
        let leader = self.field.leader().await;
        let wish = nodes.first().copied().unwrap_or(1);
        let to = if leader == Some(wish) { wish % self.field.nodes() + 1 } else { wish };
        let fault = self.begun(Nemesis::Transfer, &[to], "");
        let through = self.field.client(leader.unwrap_or(to)).within(PATIENCE);
        let answer = through.raw("POST", "/v1/cluster/transfer", json!({ "to": to }).to_string()).await;
        let came = match answer {
            Ok(answer) => format!("{}", answer.status),
            Err(failure) if failure.fate == Fate::Malformed => return Err(failure.into()),
            Err(failure) => failure.to_string(),
        };
        Ok(self.over(Fault { what: format!("the leadership is sent to node {to}: {came}"), ..fault }))
    }
}

impl Field {
    /// Removes a node whose data is lost, and adds it again without data. Waits until it votes and keeps up.
    pub(crate) async fn bring_back(&self, id: u64) -> anyhow::Result<()> {
        self.cluster().node(id).kill()?;
        self.remove(id).await?;
        self.start_anew(id)?;
        self.take_in(id).await?;
        self.has_data_again(id);
        Ok(())
    }

    /// Removes a member, which may be down.
    pub(crate) async fn remove(&self, id: u64) -> anyhow::Result<()> {
        let remove = || ask(self, id, "DELETE", format!("/v1/cluster/members/{id}"), String::new());
        Ok(until(BACK_WITHIN, format!("node {id} is removed"), remove).await?)
    }

    /// Adds a waiting node, and waits until it votes and keeps up.
    pub(crate) async fn take_in(&self, id: u64) -> anyhow::Result<()> {
        let node = self.cluster().node(id);
        let peer = node.advertised().to_string();
        let body = json!({ "id": id, "peer": peer }).to_string();
        let add = || ask(self, id, "POST", "/v1/cluster/members".to_owned(), body.clone());
        until(BACK_WITHIN, format!("node {id} is added"), add).await.with_context(|| {
            format!(
                "node {id}, which is no member; its log ends in: {}",
                node.log().lines().last().unwrap_or("")
            )
        })?;
        let votes = async || {
            for other in others(self, id) {
                if let Ok(Reply::Done { body: view, .. }) = other.cluster().await {
                    let votes = view.members.get(&id).filter(|member| member.voter);
                    let lag = votes.and_then(|member| member.lag_entries);
                    if view.role == Role::Leader && lag.is_some_and(|lag| lag <= LAG_ENTRIES) {
                        return Some(());
                    }
                }
            }
            sleep(AGAIN).await;
            None
        };
        Ok(until(BACK_WITHIN, format!("node {id} votes and keeps up"), votes).await?)
    }

    /// Makes `to` the leader.
    pub(crate) async fn lead(&self, to: u64) -> anyhow::Result<()> {
        let body = json!({ "to": to }).to_string();
        let leads = async || {
            // No node has the id 0: all are asked.
            ask(self, 0, "POST", "/v1/cluster/transfer".to_owned(), body.clone()).await?;
            (self.leader().await == Some(to)).then_some(())
        };
        Ok(until(LEADS_WITHIN, format!("node {to} leads"), leads).await?)
    }
}

fn others(field: &Field, id: u64) -> impl Iterator<Item = Client> {
    (1..=field.nodes()).filter(move |other| *other != id).map(|id| field.client(id).within(PATIENCE))
}

/// Sends a request to the nodes other than `id` in turn, until one succeeds. Returns `None`, after a pause, if none does.
async fn ask(field: &Field, id: u64, method: &str, path: String, body: String) -> Option<()> {
    for other in others(field, id) {
        let answer = other.raw(method, &path, body.clone()).await;
        if answer.is_ok_and(|answer| answer.status == 204) {
            return Some(());
        }
    }
    sleep(AGAIN).await;
    None
}
