use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, PoisonError};
use std::thread;

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

/// An address that sent a handshake, which was refused, once counted as one that answers: it came first for ever.
#[tokio::test]
async fn what_arrives_before_a_handshake_has_succeeded_does_not_count() {
    let names = names(|_| Ok(["127.0.0.1", "10.0.0.1"].map(ip).into()));
    let (name, address) = (names.name("a"), ip("127.0.0.1"));
    let first = async || name.addresses(SOON).await.unwrap()[0];
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let connected = async || {
        let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut other = listener.accept().await.unwrap().0;
        other.write_all(b"hi").await.unwrap();
        (Heard::not_yet(connected, Arc::clone(&name), address), other)
    };
    let refuses = async |mut stream: TcpStream| match stream.read_u8().await {
        Ok(b'h') => Err::<TcpStream, ()>(()),
        other => panic!("{other:?}"),
    };
    let (stream, _other) = connected().await;
    assert!(stream.through(refuses).await.is_err());
    assert_ne!(first().await, address);
    let accepts = async |mut stream: TcpStream| stream.read_u8().await.map(|_| stream);
    let (stream, _other) = connected().await;
    let mut stream = stream.through(accepts).await.unwrap();
    assert_ne!(first().await, address, "the other side may yet refuse this one");
    stream.read_u8().await.unwrap();
    assert_eq!(first().await, address);
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
