//! What is known of names.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
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
        if let Err(error) = thread::Builder::new().name("lookup".to_owned()).spawn(look) {
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, PoisonError};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::heard::Heard;

    const SOON: Duration = Duration::from_secs(60);
    const A_MOMENT: Duration = Duration::from_millis(50);

    fn names(lookup: Lookup) -> Names {
        Names { lookup, known: Mutex::default() }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_address_that_answered_comes_first_and_families_take_turns() {
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1", "::2"].map(ip);
        let ordered = |answered: Option<&str>| in_order(&all, answered.map(ip));
        assert_eq!(ordered(None), ["10.0.0.1", "::1", "10.0.0.2", "::2", "10.0.0.3"].map(ip));
        assert_eq!(ordered(Some("::2")), ["::2", "10.0.0.1", "::1", "10.0.0.2", "10.0.0.3"].map(ip));
        assert_eq!(ordered(Some("10.9.9.9")), ordered(None), "it is no address of this name any more");
        assert_eq!(in_order(&[ip("::1"), ip("::1")], None), [ip("::1")]);
        assert!(in_order(&[], Some(ip("::1"))).is_empty());
    }

    /// The kernel of a process that hangs accepts connections: such an address once was tried first for ever.
    #[tokio::test]
    async fn an_address_that_accepts_and_does_not_answer_comes_last() {
        let names = names(|_| Ok(["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip).into()));
        let name = names.name("a");
        let ordered = async || name.addresses(SOON).await.unwrap();
        assert_eq!(ordered().await, ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip));
        name.heard(ip("10.0.0.1"), true);
        name.heard(ip("10.0.0.1"), false);
        assert_eq!(ordered().await, ["10.0.0.2", "10.0.0.3", "10.0.0.1"].map(ip));
        name.heard(ip("10.0.0.2"), false);
        assert_eq!(ordered().await, ["10.0.0.3", "10.0.0.1", "10.0.0.2"].map(ip));
        name.heard(ip("10.0.0.3"), false);
        assert_eq!(ordered().await, ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip), "they take turns");
        name.heard(ip("10.0.0.2"), true);
        assert_eq!(ordered().await, ["10.0.0.2", "10.0.0.1", "10.0.0.3"].map(ip));
    }

    #[tokio::test]
    async fn an_address_answers_with_the_first_byte() {
        let names = names(|_| Ok(["10.0.0.1", "127.0.0.1"].map(ip).into()));
        let (name, address) = (names.name("a"), ip("127.0.0.1"));
        let first = async || name.addresses(SOON).await.unwrap()[0];
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut other = listener.accept().await.unwrap().0;
        let (mut reader, writer) = Heard::not_yet(connected, Arc::clone(&name), address).into_split();
        other.write_all(b"hi").await.unwrap();
        assert_ne!(first().await, address);
        assert_eq!(reader.read_u8().await.unwrap(), b'h');
        assert_eq!(first().await, address);
        // Later bytes say nothing about other connections, and nor does the end.
        name.heard(address, false);
        assert_eq!(reader.read_u8().await.unwrap(), b'i');
        drop((reader, writer));
        assert_ne!(first().await, address);
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_the_first_byte_brought_nothing() {
        let names = names(|_| Ok(["127.0.0.1", "10.0.0.1"].map(ip).into()));
        let (name, address) = (names.name("a"), ip("127.0.0.1"));
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let waits = Heard::not_yet(connected, Arc::clone(&name), address);
        // It may wait for long, and is not to be taken for silent meanwhile.
        assert_eq!(name.addresses(SOON).await.unwrap()[0], address);
        drop(waits);
        assert_ne!(name.addresses(SOON).await.unwrap()[0], address);
    }

    /// Lookups that end when they are let go.
    struct Gate {
        is_open: Mutex<bool>,
        opened: Condvar,
        begun: AtomicUsize,
    }

    impl Gate {
        const fn new() -> Self {
            Self { is_open: Mutex::new(false), opened: Condvar::new(), begun: AtomicUsize::new(0) }
        }

        fn pass(&self) {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.opened.wait_while(is_open, |is_open| !*is_open));
        }

        fn open(&self) {
            *self.is_open.lock().unwrap() = true;
            self.opened.notify_all();
        }
    }

    #[tokio::test]
    async fn a_lookup_that_hangs_takes_one_thread_and_the_next_caller_uses_what_it_finds() {
        static GATE: Gate = Gate::new();
        let names = names(|_| {
            GATE.pass();
            Ok(vec![ip("127.0.0.1")])
        });
        for _ in 0..3 {
            let unresolved = Error::Unresolved { host: "a".to_owned(), within: A_MOMENT };
            assert_eq!(names.name("a").addresses(A_MOMENT).await, Err(unresolved));
            assert!(!names.name("a").is_resolved());
        }
        assert_eq!(GATE.begun.load(Ordering::SeqCst), 1);
        GATE.open();
        assert_eq!(names.name("a").addresses(SOON).await, Ok(vec![ip("127.0.0.1")]));
        assert!(names.name("a").is_resolved());
    }

    #[tokio::test]
    async fn known_addresses_are_used_at_once_whatever_becomes_of_the_next_lookup() {
        static GATE: Gate = Gate::new();
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let names = names(|_| match CALLS.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(vec![ip("127.0.0.1")]),
            1 => {
                GATE.pass();
                Err(io::Error::other("no name server"))
            }
            _ => Ok(vec![ip("127.0.0.2")]),
        });
        let name = names.name("a");
        let known = async || name.addresses(SOON).await.unwrap();
        assert_eq!(known().await, [ip("127.0.0.1")]);
        tokio::time::sleep(LOOKUP_INTERVAL).await;
        assert_eq!(known().await, [ip("127.0.0.1")], "the second lookup hangs");
        GATE.open();
        while name.state.borrow().pending > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(known().await, [ip("127.0.0.1")], "it has failed");
        while known().await != [ip("127.0.0.2")] {
            tokio::time::sleep(A_MOMENT).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_fails_is_named_and_begins_again_after_a_second() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let names = names(|_| match CALLS.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::other("no name server")),
            1 => Ok(Vec::new()),
            _ => Ok(vec![ip("127.0.0.1")]),
        });
        let name = names.name("a");
        for why in ["no name server", "it has no address"] {
            for _ in 0..3 {
                name.look_up();
                while name.state.borrow().pending > 0 {
                    thread::yield_now();
                }
                let failed = Error::NoAddress { host: "a".to_owned(), why: why.to_owned() };
                assert_eq!(name.addresses(SOON).await, Err(failed));
            }
            tokio::time::advance(LOOKUP_INTERVAL).await;
        }
        name.look_up();
        while !name.is_resolved() {
            thread::yield_now();
        }
        assert_eq!(CALLS.load(Ordering::SeqCst), 3);
    }

    /// A resolver that never answers once froze what was known of a name.
    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_never_ends_is_followed_by_others_which_are_few() {
        static GATE: Gate = Gate::new();
        let names = names(|_| {
            GATE.pass();
            Ok(vec![ip("127.0.0.1")])
        });
        let name = names.name("a");
        let look = async |after: u64| {
            tokio::time::advance(Duration::from_secs(after)).await;
            name.look_up();
            name.state.borrow().threads
        };
        for (after, begun) in [(0, 1), (59, 1), (1, 2), (119, 2), (1, 3), (239, 3), (1, 4)] {
            assert_eq!(look(after).await, begun);
        }
        for begun in 5..=MAX_THREADS {
            assert_eq!(look(100_000).await, begun);
        }
        assert_eq!(look(100_000).await, MAX_THREADS);
        GATE.open();
        name.state.subscribe().wait_for(|state| state.threads == 0).await.unwrap();
        assert_eq!(name.state.borrow().pending, 0, "the next one may begin after a second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_ends_late_changes_nothing() {
        let names = names(|_| Ok(vec![ip("127.0.0.1")]));
        let (name, late) = (names.name("a"), Instant::now());
        tokio::time::advance(HANGS).await;
        name.look_up();
        name.state.subscribe().wait_for(|state| state.threads == 0).await.unwrap();
        name.state.send_modify(|state| state.threads += 1);
        name.found(late, Ok(vec![ip("127.0.0.2")]));
        assert_eq!(name.state.borrow().addresses, [ip("127.0.0.1")]);
    }

    #[test]
    fn the_names_that_are_remembered_are_bounded() {
        let names = names(|_| Ok(Vec::new()));
        for number in 0..2 * MAX_NAMES {
            names.name(&number.to_string());
        }
        assert!(names.known.lock().unwrap().len() <= MAX_NAMES);
    }
}
