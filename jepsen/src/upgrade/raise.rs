//! The rules are raised when all nodes are new, and not before. From then on old programs are refused.

use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_harness::{RawAnswer, until};
use ringfence_laws::check::library::RAISED;
use ringfence_laws::history::Fault;
use serde::Deserialize;
use serde_json::json;

use super::scene::{Age, Scene};

/// Bounds one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bounds the time until there is a leader to ask.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Bounds the start of a node that waits to be added.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The answer to `POST /v1/cluster/upgrade`.
#[derive(Debug, Deserialize)]
struct Raised {
    from: u64,
    to: u64,
}

impl Scene<'_> {
    /// While a node is old, nothing can be raised.
    pub(super) async fn raise_too_early(&mut self) -> anyhow::Result<()> {
        let through = self.any(Age::New).context("no node is new")?;
        let answer = self.upgrade(through).await?;
        // The new program may have no newer rules.
        let is_nothing = answer.status == 200 && raised(&answer).is_ok_and(|it| it.from == it.to);
        if !is_nothing && !is_refused(&answer) {
            let said = said(&answer);
            self.field
                .found(through, format!("it did not refuse to raise the rules beside an old node: {said}"));
        }
        Ok(())
    }

    /// Raises the rules. Returns whether there were newer ones.
    pub(super) async fn raise(&mut self) -> anyhow::Result<bool> {
        let through = self.any(Age::New).context("no node is new")?;
        let begun = self.begun(through, String::new());
        let answer = self.upgrade(through).await?;
        ensure!(answer.status == 200, "the rules are not raised: {}", said(&answer));
        let Raised { from, to } = raised(&answer)?;
        let what = format!("the rules are raised from {from} to {to}");
        self.over(Fault { nemesis: RAISED.to_owned(), what, ..begun });
        self.propose_raised().await?;
        Ok(from < to)
    }

    /// An old program must not start with the data of a member.
    pub(super) async fn start_old(&mut self, id: u64) -> anyhow::Result<()> {
        let node = self.field.cluster().node(id);
        let begun = self.begun(id, String::new());
        self.field.terminate(id).await?;
        node.use_program(self.program(Age::Old));
        let why = match node.start_in_vain().await {
            Ok(ended) if !ended.status.success() => {
                ended.output.lines().last().unwrap_or_default().to_owned()
            }
            accepted => {
                self.field.found(id, format!("it did not refuse to start as old: {accepted:?}"));
                node.kill()?;
                String::new()
            }
        };
        self.start(id, Age::New).await?;
        let what = format!("node {id} was started as old after the raise, and refused: {why}");
        self.over(Fault { what, ..begun });
        Ok(())
    }

    /// An old program must not be added.
    pub(super) async fn add_old(&mut self, id: u64) -> anyhow::Result<()> {
        let (field, node) = (self.field, self.field.cluster().node(id));
        let begun = self.begun(id, String::new());
        field.lose(id);
        field.terminate(id).await?;
        field.remove(id).await?;
        node.use_program(self.program(Age::Old));
        field.start_anew(id)?;
        let client = node.client().within(PATIENCE);
        let listens = async || client.raw("GET", "/livez", "").await.ok();
        until(STARTS_WITHIN, format!("node {id} listens"), listens).await?;
        let through = field.leader().await.context("nobody leads")?;
        let body = json!({ "id": id, "peer": node.advertised().to_string() }).to_string();
        let answer = field.client(through).within(PATIENCE).raw("POST", "/v1/cluster/members", body).await?;
        if !is_refused(&answer) {
            field.found(id, format!("it was added as old after the raise: {}", said(&answer)));
        }
        node.kill()?;
        node.use_program(self.program(Age::New));
        field.start_anew(id)?;
        field.take_in(id).await?;
        field.has_data_again(id);
        let what = format!("node {id} was removed, refused as old ({}), and added as new", said(&answer));
        self.over(Fault { what, ..begun });
        Ok(())
    }

    fn any(&self, age: Age) -> Option<u64> {
        (1..=self.field.nodes()).find(|id| self.age(*id) == age)
    }

    /// Asks to raise the rules, again while that is certainly not done because nobody leads.
    async fn upgrade(&self, through: u64) -> anyhow::Result<RawAnswer> {
        let client = self.field.client(through).within(PATIENCE);
        let ask = async || {
            let answer = client.raw("POST", "/v1/cluster/upgrade", "{}").await;
            (!answer.as_ref().is_ok_and(|answer| answer.status == 503)).then_some(answer)
        };
        Ok(until(ANSWERED_WITHIN, "an answer to a raise", ask).await??)
    }
}

fn raised(answer: &RawAnswer) -> anyhow::Result<Raised> {
    serde_json::from_slice(&answer.body).with_context(|| said(answer))
}

/// Whether it is refused, with a sentence about the rules.
fn is_refused(answer: &RawAnswer) -> bool {
    (400..500).contains(&answer.status) && said(answer).contains("rules")
}

/// An answer, for people.
fn said(answer: &RawAnswer) -> String {
    let body = String::from_utf8_lossy(&answer.body);
    let detail = serde_json::from_slice::<serde_json::Value>(&answer.body)
        .ok()
        .and_then(|problem| problem["detail"].as_str().map(str::to_owned));
    format!("{}, {}", answer.status, detail.unwrap_or_else(|| body.into_owned()))
}
