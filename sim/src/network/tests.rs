use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use ringfence_raft::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::messages::PREFACE;

struct Pair {
    network: Network,
    runtime: Runtime,
    ends: Vec<(Connection, Connection)>,
}

impl Pair {
    /// Two nodes, and some connections from the first to the second.
    fn new(connections: usize) -> Self {
        let latency = Latency { least: 1, most: 1, spikes: 0, spike: 0 };
        let network = Network::new(1, latency, Story::default());
        let is_on = Arc::new(AtomicBool::new(true));
        let (one, other) = (network.port(1, "one", &is_on), network.port(2, "other", &is_on));
        let runtime = Builder::new_current_thread().build().unwrap();
        let ends = (0..connections).map(|_| {
            runtime.block_on(async {
                let mut near = one.connect("other").await.unwrap();
                let far = other.accept().await.unwrap();
                near.writer.write_all(&[0; PREFACE]).await.unwrap();
                (near, far)
            })
        });
        let ends = ends.collect();
        Self { network, runtime, ends }
    }

    fn send(&mut self, connection: usize, bytes: u32) {
        let message = [&(bytes - 8).to_le_bytes()[..], &vec![0; bytes as usize - 4]].concat();
        self.runtime.block_on(self.ends[connection].0.writer.write_all(&message)).unwrap();
    }

    /// How many bytes have come by `now`.
    fn arrived(&mut self, connection: usize, now: u64) -> usize {
        self.network.advance(now);
        self.network.deliver();
        let reader = &mut self.ends[connection].1.reader;
        let mut bytes = 0;
        let mut buffer = [0; 4_096];
        self.runtime.block_on(async {
            while let Some(Ok(count)) = reader.read(&mut buffer).now_or_never() {
                bytes += count;
            }
        });
        bytes
    }
}

#[test]
fn a_narrow_path_carries_its_bytes_per_second_on_each_connection_until_it_is_wide_again() {
    let mut pair = Pair::new(2);
    pair.network.narrow(Narrow { from: 1, to: 2, rate: 1_000, until: 2_500 });
    for _ in 0..4 {
        pair.send(0, 1_000);
    }
    pair.send(1, 100);
    let first = PREFACE + 1_000;
    assert_eq!((pair.arrived(1, 110), pair.arrived(1, 111)), (0, PREFACE + 100));
    assert_eq!((pair.arrived(0, 1_010), pair.arrived(0, 1_011)), (0, first));
    assert_eq!((pair.arrived(0, 2_010), pair.arrived(0, 2_011)), (0, 1_000));
    assert_eq!((pair.arrived(0, 2_499), pair.arrived(0, 2_500)), (0, 2_000));
}

#[test]
fn what_follows_a_large_message_waits_with_it_and_other_connections_do_not() {
    let mut pair = Pair::new(2);
    pair.network.hold(Hold { from: 1, to: 2, channel: None, replies: None, over: 500, until: 5_000 });
    for bytes in [100, 600, 100] {
        pair.send(0, bytes);
    }
    pair.send(1, 100);
    assert_eq!((pair.arrived(0, 10), pair.arrived(1, 10)), (100 + PREFACE, 100 + PREFACE));
    assert!(pair.network.is_disturbed(2, 1));
    assert_eq!((pair.arrived(0, 4_999), pair.arrived(0, 5_001)), (0, 700));
    assert!(!pair.network.is_disturbed(2, 1));
}

/// Healing once freed only the first message: those behind it came when the hold would have ended.
#[test]
fn once_all_is_healed_nothing_waits_for_what_was_held() {
    let mut pair = Pair::new(1);
    pair.network.hold(Hold { from: 1, to: 2, channel: None, replies: None, over: 500, until: 5_000 });
    pair.send(0, 600);
    assert_eq!(pair.arrived(0, 10), 0);
    pair.send(0, 100);
    pair.network.heal();
    assert_eq!(pair.arrived(0, 12), PREFACE + 700);
}
