//! What clients of a cluster were told while it was disturbed, and whether it can all be true.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::{Key, LeaseId, ProblemKind, Token};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::{
    Acquired, Client, Cluster, Consistency, Error, Fate, Node, Reply, definite, key, try_once, until,
};

/// A pause of each asker after each grant.
const PAUSE: Duration = Duration::from_millis(20);
/// A pause after a failure, so that a node that refuses at once is not only asked.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// How long a healed cluster may take to answer a read.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// All keys that are asked for begin with this.
const PREFIX: &str = "asked/";

/// A grant that a client was told of.
#[derive(Clone, Debug)]
pub struct Told {
    /// The node that told it.
    pub node: u64,
    /// The key, which nobody else asks for.
    pub key: Key,
    /// The token.
    pub token: Token,
    /// When it was first asked for.
    pub asked: Instant,
    /// When the answer had come.
    pub answered: Instant,
}

/// Clients, one of each node, that ask for one lease after the other, each with a key of its own. What has no definite
/// answer is asked for again, of the same node.
#[derive(Debug)]
pub struct Askers {
    record: Arc<Mutex<Record>>,
    enough: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the askers were told.
#[derive(Debug, Default)]
pub struct Record {
    told: Vec<Told>,
    /// Asked for once, with the answer that it was certainly not done.
    not_done: Vec<LeaseId>,
    /// Answers that a free key cannot have.
    wrong: Vec<String>,
}

struct Asker {
    node: u64,
    client: Client,
    record: Arc<Mutex<Record>>,
    enough: Arc<AtomicBool>,
}

impl Askers {
    /// Starts asking all nodes of `cluster`.
    pub fn start(cluster: &Cluster) -> Self {
        let (record, enough) = (Arc::<Mutex<Record>>::default(), Arc::<AtomicBool>::default());
        let tasks = cluster.nodes().iter().map(|node| {
            let asker = Asker {
                node: node.id(),
                client: node.client(),
                record: Arc::clone(&record),
                enough: Arc::clone(&enough),
            };
            tokio::spawn(asker.run())
        });
        Self { tasks: tasks.collect(), record, enough }
    }

    /// Waits until one of `nodes` has told of a grant that was asked for from now on.
    pub async fn next(&self, nodes: &[u64], within: Duration) -> Result<(), Error> {
        let now = Instant::now();
        let is_next = |told: &Told| nodes.contains(&told.node) && told.asked >= now;
        let look = || std::future::ready(lock(&self.record).told.iter().any(is_next).then_some(()));
        until(within, format!("one of the nodes {nodes:?} tells of a grant"), look).await
    }

    /// Lets each end what it has begun, and gives all that was told.
    pub async fn stop(self) -> Record {
        self.enough.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        std::mem::take(&mut *lock(&self.record))
    }
}

impl Asker {
    async fn run(self) {
        for number in 0.. {
            if self.enough.load(Ordering::Relaxed) {
                return;
            }
            let pause = self.ask(key(&format!("{PREFIX}{}/{number}", self.node))).await;
            sleep(pause).await;
        }
    }

    /// Asks until nobody can doubt what has come of it; how long to pause then.
    async fn ask(&self, key: Key) -> Duration {
        let (lease, wish) = (LeaseId::random(), try_once(key.as_str()));
        let asked = Instant::now();
        let mut in_doubt = false;
        loop {
            match self.client.acquire(lease, &wish).await {
                Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) => {
                    let (node, answered) = (self.node, Instant::now());
                    lock(&self.record).told.push(Told { node, key, token: grant.token, asked, answered });
                    return PAUSE;
                }
                Err(failure) if failure.fate == Fate::NotDone && !in_doubt => {
                    lock(&self.record).not_done.push(lease);
                    return AFTER_FAILURE;
                }
                Err(failure) if failure.fate != Fate::Malformed => {
                    in_doubt = true;
                    sleep(AFTER_FAILURE).await;
                }
                other => {
                    lock(&self.record).wrong.push(format!("{key} through node {}: {other:?}", self.node));
                    return AFTER_FAILURE;
                }
            }
        }
    }
}

impl Record {
    /// All grants.
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// Panics unless all that was told can be true: tokens rise, no two are the same, what was granted stands at every
    /// node of `cluster`, which is whole again, and what was not done was not.
    pub async fn check(&self, cluster: &Cluster) {
        assert!(self.wrong.is_empty(), "{:?}", self.wrong);
        if let Some((earlier, later)) = self.out_of_order() {
            panic!("tokens do not rise: first {earlier:?}, then {later:?}");
        }
        for node in cluster.nodes() {
            let held = held(node).await;
            for told in &self.told {
                let found = held.get(&told.key);
                assert_eq!(found, Some(&vec![told.token]), "node {} has lost {told:?}", node.id());
            }
            for &lease in &self.not_done {
                let client = node.client();
                let answer = definite(READ_WITHIN, || client.lease(lease, Consistency::Linearizable)).await;
                let is_unknown = matches!(&answer, Ok(Reply::Refused(problem)) if problem.kind == ProblemKind::UnknownLease);
                assert!(
                    is_unknown,
                    "{lease} was certainly not done, says one, and node {}: {answer:?}",
                    node.id()
                );
            }
        }
    }

    /// Two grants of which the second was asked for after the first had been told, but has no larger token; or two with
    /// the same.
    fn out_of_order(&self) -> Option<(&Told, &Told)> {
        let mut by_token: HashMap<Token, &Told> = HashMap::new();
        for told in &self.told {
            if let Some(same) = by_token.insert(told.token, told) {
                return Some((same, told));
            }
        }
        let (mut asked, mut answered): (Vec<&Told>, Vec<&Told>) =
            self.told.iter().map(|told| (told, told)).unzip();
        asked.sort_by_key(|told| told.asked);
        answered.sort_by_key(|told| told.answered);
        let mut answered = answered.into_iter().peekable();
        let mut highest: Option<&Told> = None;
        for later in asked {
            while let Some(earlier) = answered.next_if(|told| told.answered < later.asked) {
                highest = highest.into_iter().chain([earlier]).max_by_key(|told| told.token);
            }
            if let Some(earlier) = highest.filter(|earlier| earlier.token > later.token) {
                return Some((earlier, later));
            }
        }
        None
    }
}

/// The tokens of all keys that were asked for, as `node` confirms them.
async fn held(node: &Node) -> HashMap<Key, Vec<Token>> {
    let (client, mut held, mut after) = (node.client(), HashMap::new(), None::<String>);
    loop {
        let read = || client.keys(PREFIX, after.as_deref(), Consistency::Linearizable);
        let page = match definite(READ_WITHIN, read).await {
            Ok(Reply::Done { body, .. }) => body,
            other => panic!("node {}: {other:?}", node.id()),
        };
        held.extend(page.keys.into_iter().map(|view| {
            let tokens = view.holders.iter().map(|holder| holder.token).collect();
            (view.key, tokens)
        }));
        after = page.next;
        if after.is_none() {
            return held;
        }
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().expect("no panic while the record is locked")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants as (token, asked, answered).
    fn order(told: &[(u64, u64, u64)]) -> Option<(u64, u64)> {
        let began = Instant::now();
        let told = told.iter().map(|&(token, asked, answered)| Told {
            node: 1,
            key: key("any"),
            token: Token(token),
            asked: began + Duration::from_millis(asked),
            answered: began + Duration::from_millis(answered),
        });
        let record = Record { told: told.collect(), ..Record::default() };
        record.out_of_order().map(|(earlier, later)| (earlier.token.0, later.token.0))
    }

    #[test]
    fn tokens_that_fall_from_one_answer_to_the_next_question_are_found() {
        assert_eq!(order(&[(1, 0, 2), (2, 3, 4), (3, 4, 9)]), None);
        // What was asked at the same time may be granted in any order.
        assert_eq!(order(&[(2, 0, 5), (1, 4, 6)]), None);
        assert_eq!(order(&[(2, 0, 3), (1, 4, 6)]), Some((2, 1)));
        assert_eq!(order(&[(1, 4, 6), (7, 0, 3), (3, 0, 1)]), Some((7, 1)));
        assert_eq!(order(&[(5, 0, 9), (5, 1, 2)]), Some((5, 5)));
    }
}
