//! Members that lose their data and are taken in anew, and a leadership that goes elsewhere.

use std::time::Duration;

use anyhow::Context;
use ringfence_harness::{Client, Fate, Reply, until};
use ringfence_wire::Role;
use serde_json::json;
use tokio::time::sleep;

use super::{Scene, named};
use crate::field::Field;
use crate::history::Fault;
use crate::nemesis::Nemesis;

/// How long it may take to take a node in anew. Other faults may go on meanwhile.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// How long it may take to make a node the leader.
const LEADS_WITHIN: Duration = Duration::from_secs(30);
/// No request about members takes longer, and so long there is between two.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(200);
/// Under load no member has all entries at every look.
const LAG_ENTRIES: u64 = 100;

impl Scene<'_> {
    /// Those that are hit are started as if nothing had happened, first: the others must not let them in.
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
                self.field.found(*id, "it was let back in though all its data was gone".to_owned());
            }
        }
        for id in nodes {
            self.field.bring_back(*id).await?;
        }
        Ok(self.over(fault))
    }

    /// To somebody else if it is there already.
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
    /// Takes in a node whose data is gone, or as good as gone: the member that it was is removed, and it is added again, with
    /// nothing. It is back once it votes and keeps up with the others.
    pub(crate) async fn bring_back(&self, id: u64) -> anyhow::Result<()> {
        self.cluster().node(id).kill()?;
        self.remove(id).await?;
        self.start_anew(id)?;
        self.take_in(id).await?;
        self.has_data_again(id);
        Ok(())
    }

    /// Removes a member, which need not answer.
    pub(crate) async fn remove(&self, id: u64) -> anyhow::Result<()> {
        let remove = || ask(self, id, "DELETE", format!("/v1/cluster/members/{id}"), String::new());
        Ok(until(BACK_WITHIN, format!("node {id} is removed"), remove).await?)
    }

    /// Adds a node that waits for it, and waits until it votes and keeps up.
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
            // 0 is no node: all are asked.
            ask(self, 0, "POST", "/v1/cluster/transfer".to_owned(), body.clone()).await?;
            (self.leader().await == Some(to)).then_some(())
        };
        Ok(until(LEADS_WITHIN, format!("node {to} leads"), leads).await?)
    }
}

fn others(field: &Field, id: u64) -> impl Iterator<Item = Client> {
    (1..=field.nodes()).filter(move |other| *other != id).map(|id| field.client(id).within(PATIENCE))
}

/// Asks the nodes other than `id` in turn, until one has done it; else after a moment `None`.
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
