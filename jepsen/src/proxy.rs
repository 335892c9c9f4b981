//! Without root: a proxy before each node's peer address, which knows from a caller's first words who calls, and so holds
//! up bytes of either direction of a link alone.
//!
//! ```text
//!  node 1 ──▶ proxy of node 2 ──▶ node 2        1 ▶ 2: what a caller says, if it is node 1
//!         ◀──                 ◀──               2 ▶ 1: what it is answered
//! ```
//! A link that is cut holds bytes, and the ends of connections, until it is whole again: that is what TCP comes to where
//! packets are lost. Unlike there, connections can still be made; nothing comes over them.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_harness::{Delivery, Direction, Node, Proxy, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// How long bytes take on a slow link, at most.
const SLOW_MS: std::ops::RangeInclusive<u64> = 20..=400;
/// How many bytes come through a connection while its link is half open: enough for the first words.
const FIRST_BYTES: usize = 600;
/// The first words: a preface, a frame's head and kind, the group, the channel, the cluster if there is one, the caller.
const PREFACE: usize = 10;
const FRAME_HEAD: usize = 9;
const UUID: usize = 17;
/// The most bytes of first words that are looked into.
const MAX_HELLO: usize = 1 << 10;

/// What is wrong with the way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trouble {
    /// Nothing arrives.
    Cut,
    /// A quarter of all packets is lost, or bytes take long.
    Slow,
    /// Connections are made, and what is small, or comes first, arrives; no more.
    HalfOpen,
}

/// Whatever is wrong, with the links that have it.
type Troubles = HashSet<(Trouble, (u64, u64))>;

/// The proxies of one cluster; they end with this.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    wrong: Wrong,
    listening: Mutex<Vec<Proxy>>,
}

impl Proxies {
    /// One before this node, where it is now.
    pub(crate) async fn listen(&self, node: &Node) -> anyhow::Result<()> {
        let listener = TcpListener::bind(node.advertised()).await?;
        let (to, address, wrong) = (node.id(), node.peer(), self.wrong.clone());
        let proxy = Proxy::on(listener, move |caller| relay(caller, to, address, wrong.clone()))?;
        self.listening.lock().expect("no panic while it is locked").push(proxy);
        Ok(())
    }

    /// How often bytes were held up so far.
    pub(crate) fn held(&self) -> u64 {
        self.wrong.held.load(Ordering::Relaxed)
    }

    pub(crate) fn trouble(&self, trouble: Trouble, links: &[(u64, u64)]) {
        self.wrong
            .troubles
            .send_modify(|troubles| troubles.extend(links.iter().map(|link| (trouble, *link))));
    }

    pub(crate) fn ease(&self, trouble: Trouble) {
        self.wrong.troubles.send_modify(|troubles| troubles.retain(|(other, _)| *other != trouble));
    }
}

async fn relay(mut caller: TcpStream, to: u64, node: SocketAddr, wrong: Wrong) -> io::Result<()> {
    let mut first = Vec::new();
    let from = loop {
        if let Some(from) = who_calls(&first) {
            break from;
        }
        if first.len() > MAX_HELLO || caller.read_buf(&mut first).await? == 0 {
            return Ok(());
        }
    };
    let way = |from, to| Way { link: (from, to), wrong: wrong.clone(), passed: AtomicUsize::new(0) };
    let there = way(from, to);
    there.arrives(&first).await;
    let mut callee = TcpStream::connect(node).await?;
    callee.write_all(&first).await?;
    splice(caller, callee, there, way(to, from)).await
}

/// What connections know of what is wrong.
#[derive(Clone, Debug, Default)]
struct Wrong {
    troubles: watch::Sender<Troubles>,
    /// How often bytes were held up.
    held: Arc<AtomicU64>,
}

/// One direction of a connection.
struct Way {
    link: (u64, u64),
    wrong: Wrong,
    passed: AtomicUsize,
}

impl Direction for Way {
    /// Waits as long as its link lets nothing pass, or takes.
    async fn arrives(&self, bytes: &[u8]) -> Delivery {
        let link = self.link;
        let passed = self.passed.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        let is_late = passed > FIRST_BYTES;
        let Wrong { troubles, held } = &self.wrong;
        let is_slow = troubles.borrow().contains(&(Trouble::Slow, link));
        if is_slow {
            held.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(fastrand::u64(SLOW_MS))).await;
        }
        let passes = |troubles: &Troubles| {
            let has = |trouble| troubles.contains(&(trouble, link));
            !(has(Trouble::Cut) || is_late && has(Trouble::HalfOpen))
        };
        if !passes(&troubles.borrow()) {
            held.fetch_add(1, Ordering::Relaxed);
        }
        // The sender is here.
        let _ = troubles.subscribe().wait_for(passes).await;
        Delivery::Pass
    }
}

/// The caller's id, once enough of the first words is there.
fn who_calls(first: &[u8]) -> Option<u64> {
    let body = first.get(PREFACE + FRAME_HEAD..)?;
    // The group and the channel take a byte each.
    let cluster = if *body.get(2)? == 0 { 1 } else { 1 + UUID };
    varint(body.get(2 + cluster..)?)
}

fn varint(bytes: &[u8]) -> Option<u64> {
    let length = 1 + bytes.iter().position(|byte| byte & 0x80 == 0)?;
    Some(bytes[..length].iter().rev().fold(0, |all, byte| all << 7 | u64::from(byte & 0x7f)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the peers' own test fixes.
    #[test]
    fn the_first_words_tell_who_calls() {
        let mut first = vec![b'x'; PREFACE + FRAME_HEAD];
        first.extend([0, 3, 1, 16]);
        first.extend([7; 16]);
        for (id, bytes) in [(1, &[1][..]), (300, &[0xac, 2])] {
            let with = [&first[..], bytes, &[16]].concat();
            assert_eq!(who_calls(&with), Some(id));
            assert_eq!(who_calls(&with[..first.len()]), None);
        }
        let founding = [&[b'x'; PREFACE + FRAME_HEAD][..], &[0, 0, 0, 2, 16]].concat();
        assert_eq!(who_calls(&founding), Some(2));
    }
}
