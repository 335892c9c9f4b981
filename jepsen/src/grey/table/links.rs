//! Links between nodes that are long, narrow, cut in one direction, or behind a firewall.

use super::{ELECTED_S, Row};
use crate::grey::fault::links::{FarApart, NarrowLink};
use crate::grey::fault::packets::{Losing, Lost};
use crate::grey::figure::Figure;
use crate::grey::play::Aim;

/// Firewalls that let in replies only.
pub(super) fn firewalls() -> Vec<Row> {
    let network = "nftables drops what is sent to the port, in the network namespace of its node";
    let opened = |peer, http| Losing { lost: Lost::Opened { peer, http } };
    // The others say so after 2 s, and the leader gives up half a second later.
    let told = |row: Row| row.and(Figure::NoGrant, 2.5 + ELECTED_S).and(Figure::NoRenewal, 2.5 + ELECTED_S);
    vec![
        told(Row::new(
            "uncallable",
            "nobody can open a connection to the leader, neither nodes nor clients",
            network,
            opened(true, true),
        )),
        told(Row::new(
            "uncallable-peer",
            "no node can open a connection to the leader; clients can",
            network,
            opened(true, false),
        )),
        Row::new(
            "uncallable-http",
            "no client can open a connection to the leader; nodes can",
            network,
            opened(false, true),
        ),
        Row::new(
            "uncallable-follower",
            "nobody can open a connection to a follower",
            network,
            opened(true, true),
        )
        .at(Aim::Follower),
    ]
}

pub(super) fn links() -> Vec<Row> {
    let far = |round_trip_ms, elect| FarApart { round_trip_ms, elect };
    let relays = "relays between the nodes hold each byte for half of it";
    let network = "nftables drops packets between network namespaces";
    vec![
        Row::new(
            "rtt-120",
            "round trips between nodes take 120 ms, and nothing is asked of the cluster",
            relays,
            far(120, false),
        )
        .idle()
        .ttl(12),
        Row::new("rtt-250", "round trips between nodes take 250 ms", relays, far(250, false)),
        Row::new(
            "rtt-500",
            "round trips between nodes take 500 ms, and the leader dies",
            "the same; the leader is killed",
            far(500, true),
        )
        .lasts(25)
        // Cluster time is promised for up to 250 ms.
        .but([Figure::NextHolder, Figure::Overlap])
        .and(Figure::NoGrant, 10.0)
        .and(Figure::NoRenewal, 10.0),
        Row::new(
            "slow-link",
            "the link to a follower carries 1.2 MB/s, and clients write more",
            "a relay before it; four clients acquire leases of 32 KB",
            NarrowLink::of(1_200_000),
        )
        .at(Aim::Follower)
        .lasts(45)
        .and(Figure::Healed, 25.0),
        Row::new(
            "large-lost",
            "large packets that the leader sends to others are lost; small ones arrive",
            network,
            Losing { lost: Lost::Large },
        )
        // It gives up leading after 3 s, and then another is elected.
        .and(Figure::NoGrant, 3.0 + ELECTED_S)
        .and(Figure::NoRenewal, 3.0 + ELECTED_S)
        .and(Figure::NextHolder, 3.0 + ELECTED_S),
        Row::new(
            "mute",
            "nothing that the leader sends to others arrives",
            network,
            Losing { lost: Lost::Sent },
        ),
        Row::new(
            "deaf",
            "nothing that others send to the leader arrives",
            network,
            Losing { lost: Lost::Received },
        ),
    ]
}
