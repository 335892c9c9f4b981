//! What is known of names.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::Error;

/// How soon after the last lookup began another may begin.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);
/// A lookup that takes longer may never end: another begins beside it. With each one the time doubles.
const HANGS: Duration = Duration::from_secs(60);
/// The maximum number of lookups of one name at a time. If that many hang, the name keeps its addresses.
const MAX_THREADS: usize = 8;
/// The most names that are remembered. What is known of others is forgotten, unless a lookup is under way.
const MAX_NAMES: usize = 1_024;

/// The names that the system's resolver knows, for the whole process.
pub(crate) static SYSTEM: Names = Names { lookup, known: Mutex::new(BTreeMap::new()) };

/// Names, and how to look them up.
#[derive(Debug)]
pub(crate) struct Names {
    lookup: Lookup,
    known: Mutex<BTreeMap<String, Arc<Name>>>,
}

type Lookup = fn(&str) -> io::Result<Vec<IpAddr>>;

/// One name.
#[derive(Debug)]
pub(crate) struct Name {
    host: String,
    lookup: Lookup,
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    /// As the last lookup that succeeded found them.
    addresses: Vec<IpAddr>,
    /// The one that answered last.
    answered: Option<IpAddr>,
    /// Those whose last connection brought nothing, in the order in which they ended.
    unheard: Vec<IpAddr>,
    /// When the last lookup began, and how many have begun since the last one ended.
    began: Option<Instant>,
    pending: u32,
    /// When the last one that has ended began.
    ended: Option<Instant>,
    /// How many lookups are under way.
    threads: usize,
    /// Why the last lookup failed.
    failure: String,
}

impl Names {
    /// The name `host`: always the same while it is remembered.
    pub(crate) fn name(&self, host: &str) -> Arc<Name> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.get(host) {
            return Arc::clone(name);
        }
        if known.len() >= MAX_NAMES {
            known.retain(|_, name| name.state.borrow().threads > 0);
        }
        let name = Name { host: host.to_owned(), lookup: self.lookup, state: watch::Sender::default() };
        let name = Arc::new(name);
        known.insert(host.to_owned(), Arc::clone(&name));
        name
    }
}

impl Name {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether addresses are known. If not, a lookup goes on in the background.
    pub(crate) fn is_resolved(self: &Arc<Self>) -> bool {
        let is_resolved = !self.state.borrow().addresses.is_empty();
        if !is_resolved {
            self.look_up();
        }
        is_resolved
    }

    /// The last good addresses.
    pub(crate) fn known(&self) -> Vec<IpAddr> {
        self.state.borrow().addresses.clone()
    }

    /// The last good addresses in the order to try them, while a lookup in the background renews them. Waits for the first lookup,
    /// for at most `within`.
    pub(crate) async fn addresses(self: &Arc<Self>, within: Duration) -> Result<Vec<IpAddr>, Error> {
        self.look_up();
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !state.addresses.is_empty() || state.pending == 0);
        let host = || self.host.clone();
        match timeout(within, settled).await {
            Ok(Ok(state)) if state.addresses.is_empty() => {
                Err(Error::NoAddress { host: host(), why: state.failure.clone() })
            }
            Ok(Ok(state)) => Ok(state.in_order()),
            // The sender is this name's own: it is not closed.
            Ok(Err(_)) | Err(_) => Err(Error::Unresolved { host: host(), within }),
        }
    }

    /// Records whether a connection to `address` brought anything.
    pub(crate) fn heard(&self, address: IpAddr, arrived: bool) {
        self.state.send_if_modified(|state| {
            state.unheard.retain(|it| *it != address);
            match arrived {
                true => state.answered = Some(address),
                false => state.unheard.push(address),
            }
            false
        });
    }

    /// Begins a lookup, unless one is under way or has just begun.
    fn look_up(self: &Arc<Self>) {
        let mut began = None;
        self.state.send_if_modified(|state| {
            let pause = match state.pending {
                0 => LOOKUP_INTERVAL,
                pending => HANGS.saturating_mul(2_u32.saturating_pow(pending - 1)),
            };
            if state.threads < MAX_THREADS && state.began.is_none_or(|began| began.elapsed() >= pause) {
                began = Some(Instant::now());
                (state.began, state.pending, state.threads) = (began, state.pending + 1, state.threads + 1);
            }
            began.is_some()
        });
        let Some(began) = began else { return };
        let name = Arc::clone(self);
        let look = move || name.found(began, (name.lookup)(&name.host));
        if let Err(error) = ringfence_aside::start("lookup", look) {
            self.found(began, Err(error));
        }
    }

    /// The lookup that `began` then has ended.
    fn found(&self, began: Instant, found: io::Result<Vec<IpAddr>>) {
        self.state.send_modify(|state| {
            state.threads -= 1;
            // A later one may have ended before.
            if state.ended.is_some_and(|ended| began < ended) {
                return;
            }
            (state.ended, state.pending) = (Some(began), 0);
            match found {
                Ok(addresses) if !addresses.is_empty() => {
                    state.unheard.retain(|it| addresses.contains(it));
                    state.addresses = addresses;
                }
                Ok(_) => state.failure = "it has no address".to_owned(),
                Err(error) => state.failure = error.to_string(),
            }
        });
    }
}

fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

impl State {
    /// The addresses in the order to try them: those that are not heard last.
    fn in_order(&self) -> Vec<IpAddr> {
        let mut ordered = in_order(&self.addresses, self.answered);
        ordered.sort_by_key(|address| {
            self.unheard.iter().position(|it| it == address).map_or(0, |place| place + 1)
        });
        ordered
    }
}

/// The one that answered last, then the others: one of each family in turn, in the order of the system.
fn in_order(addresses: &[IpAddr], answered: Option<IpAddr>) -> Vec<IpAddr> {
    let Some(first) = answered.filter(|it| addresses.contains(it)).or(addresses.first().copied()) else {
        return Vec::new();
    };
    let (mut same, mut other) = (Vec::new(), Vec::new());
    for &address in addresses.iter().filter(|address| **address != first) {
        if address.is_ipv4() == first.is_ipv4() { same.push(address) } else { other.push(address) }
    }
    let mut ordered = vec![first];
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    while ordered.len() < addresses.len() {
        let before = ordered.len();
        ordered.extend(other.next());
        ordered.extend(same.next());
        // An address that was listed twice.
        if ordered.len() == before {
            break;
        }
    }
    ordered
}

#[cfg(test)]
mod tests;
