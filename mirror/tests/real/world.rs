use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use ringfence_harness::{RedisServer, Workers, until};
use ringfence_mirror::{Mirror, Settings, State, Status};
use ringfence_wire::{Key, Mode};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::table::Table;

/// Bounds what takes a few seconds, on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// A reader of one or several masters.
#[derive(Clone)]
pub(crate) struct Redis {
    clients: Arc<Vec<Client>>,
    open: Arc<Mutex<BTreeMap<usize, MultiplexedConnection>>>,
}

/// The fields of all hashes, by key.
pub(crate) type Dump = BTreeMap<String, BTreeMap<String, String>>;

/// A server, and its reader.
pub(crate) async fn one_server() -> (RedisServer, Redis) {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    (server, redis)
}

impl Redis {
    pub(crate) fn at(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let clients =
            addresses.into_iter().map(|at| Client::open(format!("redis://{at}")).unwrap()).collect();
        Self { clients: Arc::new(clients), open: Arc::default() }
    }

    async fn run<T: redis::FromRedisValue>(&self, number: usize, words: &[&str]) -> Result<T, RedisError> {
        let open = self.open.lock().unwrap().get(&number).cloned();
        let mut connection = match open {
            Some(connection) => connection,
            None => {
                let second = Some(Duration::from_secs(1));
                let config =
                    AsyncConnectionConfig::new().set_connection_timeout(second).set_response_timeout(second);
                let made = self.clients[number].get_multiplexed_async_connection_with_config(&config).await?;
                self.open.lock().unwrap().insert(number, made.clone());
                made
            }
        };
        let answer = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await;
        if answer.is_err() {
            self.open.lock().unwrap().remove(&number);
        }
        answer
    }

    /// The fence in this hash, on the master that has it.
    pub(crate) async fn fence(&self, name: &str) -> Result<Option<u64>, RedisError> {
        let mut fence = None;
        for number in 0..self.clients.len() {
            match self.run::<Option<u64>>(number, &["HGET", name, "fence"]).await {
                Ok(read) => fence = fence.or(read),
                // Another master has it.
                Err(error) if error.code() == Some("MOVED") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(fence)
    }

    /// Everything that readers can see.
    pub(crate) async fn dump(&self) -> Result<Dump, RedisError> {
        let mut dump = Dump::new();
        for number in 0..self.clients.len() {
            for name in self.run::<Vec<String>>(number, &["KEYS", "ringfence:{*"]).await? {
                let hash: BTreeMap<String, String> = match self.run(number, &["HGETALL", &name]).await {
                    Err(error) if error.code() == Some("WRONGTYPE") => {
                        BTreeMap::from([("state".to_owned(), "wrong type".to_owned())])
                    }
                    hash => hash?,
                };
                let key = name.strip_prefix("ringfence:{").and_then(|name| name.strip_suffix('}'));
                dump.insert(key.unwrap_or(&name).to_owned(), hash);
            }
        }
        Ok(dump)
    }
}

/// The name of a key's hash.
pub(crate) fn name(key: &Key) -> String {
    format!("ringfence:{{{key}}}")
}

/// Settings without the slow sweep, which would hide faults that were not noticed at once.
pub(crate) fn unswept(url: impl Into<String>) -> Settings {
    Settings { sweep_keys_per_s: 0, ..Settings::new(url) }
}

pub(crate) fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|number| Key::new(&format!("k/{number}")).unwrap()).collect()
}

/// A table, its running mirror, and a reader.
pub(crate) struct World {
    pub(crate) table: Table,
    pub(crate) mirror: Mirror,
    pub(crate) redis: Redis,
    publishing: JoinHandle<()>,
}

impl World {
    pub(crate) fn start(settings: Settings, redis: &Redis, table: Table) -> Self {
        let mirror = Mirror::new(settings).unwrap();
        let publishing = publish(&mirror, &table);
        Self { table, mirror, redis: redis.clone(), publishing }
    }

    /// Stops publishing, as when the node no longer leads.
    pub(crate) async fn step_down(&mut self) {
        self.publishing.abort();
        let _ = (&mut self.publishing).await;
        assert_eq!(self.mirror.status().state, State::Standby);
    }

    pub(crate) fn lead_again(&mut self) {
        self.publishing = publish(&self.mirror, &self.table);
    }

    pub(crate) async fn status(&self, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        let look = || std::future::ready(Some(self.mirror.status()).filter(|status| is(status)));
        let seen = until(WITHIN, what.to_owned(), look).await;
        seen.unwrap_or_else(|error| panic!("{error}; it is {:?}", self.mirror.status()))
    }

    pub(crate) async fn state(&self, state: State) -> Status {
        self.status(&format!("the mirror is {state:?}"), |status| status.state == state).await
    }

    /// A difference from the table: a live key with a wrong hash, or a hash that does not say that its key is free.
    async fn difference(&self) -> Option<String> {
        let mut dump = match self.redis.dump().await {
            Ok(dump) => dump,
            Err(error) => return Some(error.to_string()),
        };
        for state in self.table.all() {
            let Some(hash) = dump.remove(state.key.as_str()) else {
                return Some(format!("{}: no hash", state.key));
            };
            let number = |field: &str| hash.get(field).and_then(|text| text.parse::<u64>().ok());
            let is_right = number("fence") == Some(state.fence.0)
                && number("token") == Some(state.token.0)
                && number("rev").is_some_and(|rev| rev <= self.table.revision().0)
                && hash.get("state").is_some_and(|text| text == "held")
                && hash.get("holder").map(String::as_str)
                    == Some(state.holder.as_ref().map_or("", |h| h.as_str()));
            if !is_right {
                return Some(format!("{state:?}, but in Redis {hash:?}"));
            }
        }
        let revision = self.table.revision().0;
        let wrong = dump.into_iter().find(|(_, hash)| {
            let number = |field: &str| hash.get(field).and_then(|text| text.parse::<u64>().ok());
            hash.get("state").is_none_or(|state| state != "free")
                || number("token") != Some(0)
                || number("rev").is_none_or(|rev| rev > revision || number("fence") != Some(rev + 1))
        });
        wrong.map(|(key, hash)| format!("{key} is free, but in Redis {hash:?}"))
    }

    /// Waits until there are this many hashes.
    pub(crate) async fn has_hashes(&self, count: u64, since: &str) {
        let started = Instant::now();
        // One is the marker.
        let look = async || (self.redis.run::<u64>(0, &["DBSIZE"]).await == Ok(count + 1)).then_some(());
        until(3 * WITHIN, format!("there are {count} hashes"), look).await.unwrap();
        eprintln!("{count} hashes {:?} after {since}", started.elapsed());
    }

    /// Waits until Redis has what the table has, and prints how long that took.
    pub(crate) async fn is_equal(&self, since: &str) {
        let started = Instant::now();
        let last = Mutex::new(None);
        let look = async || {
            let difference = self.difference().await;
            let is_equal = difference.is_none().then_some(());
            *last.lock().unwrap() = difference;
            is_equal
        };
        if let Err(error) = until(WITHIN, "the mirror is equal to the table", look).await {
            panic!("{error}: {:?}; {:?}", last.lock().unwrap(), self.mirror.status());
        }
        eprintln!("equal {:?} after {since}", started.elapsed());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.publishing.abort();
    }
}

fn publish(mirror: &Mirror, table: &Table) -> JoinHandle<()> {
    let (mirror, table) = (mirror.clone(), table.clone());
    tokio::spawn(async move { match mirror.publish(table).await {} })
}

/// Grants and releases, exclusive and shared, until it is stopped.
pub(crate) fn churn(table: &Table, keys: &[Key]) -> Workers {
    Workers::start(1, |_, work| {
        let (table, keys) = (table.clone(), keys.to_vec());
        async move {
            let (mut held, mut turn) = (Vec::new(), 0);
            while work.goes_on() {
                let key = &keys[turn * 7 % keys.len()];
                let mode = if turn % 3 == 0 { Mode::Shared { limit: None } } else { Mode::Exclusive };
                if let Some((lease, _)) = table.grant_as(key, mode, &format!("holder {turn}")) {
                    held.push(lease);
                    work.did(1);
                }
                // Half of the keys are held at a time.
                if held.len() > keys.len() / 2 {
                    table.release(held.remove(turn % held.len()));
                }
                turn += 1;
                sleep(Duration::from_millis(2)).await;
            }
        }
    })
}
