//! The half-broken environments, and what is promised in each.
//!
//! Where a number has no reason beside it: elections take 0.5 to 2 s on an idle machine, and this one is busy.

mod links;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::fault::Fault;
use super::fault::clocks::Slewed;
use super::fault::copies::{Copied, Use};
use super::fault::flapping::Flapping;
use super::fault::flushes::{Disks, SlowFlushes};
use super::fault::logs::{Full, Unread};
use super::fault::memory::{self, LittleMemory};
use super::fault::names::{Named, Names};
use super::fault::nothing::Nothing;
use super::fault::packets::{Losing, Lost};
use super::fault::redis::HungRedis;
use super::fault::stops::{Hangs, OneHangs, Sleeps};
use super::figure::{Figure, Promise};
use super::play::{Aim, Course, Ground, Played, play};
use super::queue::Holder;

/// The share of real time that cluster time runs at, at least; and how late the next holder is beyond that.
const RATE: f64 = 0.9;
const LATE_S: f64 = 2.0;
/// Until others grant when a leader is lost in an instant.
const ELECTED_S: f64 = 4.0;
/// By how much a node may grow, whatever is wrong.
const GROWTH_MIB: f64 = 150.0;
/// How late a process learns on a busy machine that its time is over.
const SCHEDULED_S: f64 = 0.1;
/// What chronyd slews a clock by, unless it is told otherwise.
const CHRONY_PPM: i64 = 83_333;

/// An environment.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What is half broken.
    pub(super) broken: &'static str,
    /// How that is made.
    pub(super) made: &'static str,
    pub(super) promise: Promise,
    pub(super) is_quick: bool,
    course: Course,
    /// Until it is played.
    play: Option<Play>,
}

type Play = Box<dyn FnOnce(Ground, Course, Promise) -> LocalBoxFuture<'static, Played>>;

impl Row {
    fn new<F: Fault>(name: &'static str, broken: &'static str, made: &'static str, fault: F) -> Self {
        let course = Course {
            aim: Aim::Leader,
            holder: Holder::Dies,
            ttl: Duration::from_secs(6),
            lasts: Duration::from_secs(20),
            idle: false,
        };
        let play = move |ground, course, promise| -> LocalBoxFuture<'static, Played> {
            Box::pin(play(ground, course, promise, fault))
        };
        let promise = Promise::default()
            .and(Figure::NoGrant, ELECTED_S)
            .and(Figure::NoRenewal, ELECTED_S)
            .and(Figure::Memory, GROWTH_MIB)
            .and(Figure::LostLeases, 0.0)
            .and(Figure::TokensTwice, 0.0)
            .and(Figure::Overtaken, 0.0)
            .and(Figure::Overlap, SCHEDULED_S)
            .and(Figure::Healed, 15.0)
            .and(Figure::Panics, 0.0);
        let row = Self { name, broken, made, promise, is_quick: false, course, play: Some(Box::new(play)) };
        row.ttl(6)
    }

    /// Plays it in this folder.
    pub(super) async fn play(&mut self, program: PathBuf, folder: PathBuf) -> Played {
        let play = self.play.take().expect("a row is played once");
        play(Ground { program, folder }, self.course, self.promise.clone()).await
    }

    /// The holder's time-to-live; the next holder is promised for the time after it.
    fn ttl(mut self, seconds: u16) -> Self {
        self.course.ttl = Duration::from_secs(seconds.into());
        let late_s = f64::from(seconds) * (1.0 / RATE - 1.0) + LATE_S;
        self.promise = self.promise.and(Figure::NextHolder, late_s);
        self
    }

    fn lasts(mut self, seconds: u64) -> Self {
        self.course.lasts = Duration::from_secs(seconds);
        self
    }

    fn at(mut self, aim: Aim) -> Self {
        self.course.aim = aim;
        self
    }

    fn locks(mut self) -> Self {
        self.course.holder = Holder::Locks;
        self
    }

    fn idle(mut self) -> Self {
        self.course.idle = true;
        self.but([Figure::NoGrant, Figure::NoRenewal, Figure::LostLeases])
    }

    /// It is among the few that are played often, for just as long as it takes to see the next holder.
    fn quick(self) -> Self {
        Self { is_quick: true, ..self.lasts(12) }
    }

    fn and(mut self, figure: Figure, most: f64) -> Self {
        self.promise = self.promise.and(figure, most);
        self
    }

    /// Nothing is promised of these.
    fn but<const N: usize>(mut self, figures: [Figure; N]) -> Self {
        self.promise = figures.into_iter().fold(self.promise, Promise::without);
        self
    }
}

/// All of them.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = vec![Row::new("nothing", "nothing: the control", "nothing is done", Nothing)];
    rows.extend(disks());
    rows.extend(links::links());
    rows.extend(links::firewalls());
    rows.extend(threads());
    rows.extend(machines());
    rows.extend(surroundings());
    rows.extend(directories());
    rows
}

fn disks() -> Vec<Row> {
    let slow = |of, ms, restart| SlowFlushes { of, ms, restart };
    let made = "a preloaded library delays `fdatasync` and `fsync`";
    vec![
        Row::new(
            "slow-disk-1",
            "flushes of the leader's disk take 0.6 s",
            made,
            slow(Disks::One, 600, false),
        ),
        Row::new("slow-disk-2", "flushes of two disks take 0.6 s", made, slow(Disks::Two, 600, false)),
        Row::new("slow-disk-all", "flushes of all disks take 0.6 s", made, slow(Disks::All, 600, false)),
        Row::new(
            "slow-disk-start",
            "flushes of all disks take 1 s, and all nodes start again",
            "the same; all nodes are killed",
            slow(Disks::All, 1_000, true),
        )
        .lasts(45)
        .and(Figure::Rejoined, 25.0)
        .but([
            Figure::NoGrant,
            Figure::NoRenewal,
            Figure::LostLeases,
            Figure::NextHolder,
            Figure::Overlap,
        ]),
        Row::new(
            "hung-disk",
            "a flush of the leader's disk never ends",
            made,
            slow(Disks::One, 3_600_000, false),
        ),
    ]
}

fn threads() -> Vec<Row> {
    let http = || OneHangs::named("http-0");
    vec![
        Row::new(
            "leader-raft-hangs",
            "the Raft thread of the leader hangs, and its other threads run",
            "ptrace",
            OneHangs::of_raft(),
        ),
        Row::new("leader-http-hangs", "the HTTP thread of the leader hangs that accepts", "ptrace", http()),
        Row::new("follower-http-hangs", "that of a follower hangs", "ptrace", http()).at(Aim::Follower),
    ]
}

fn machines() -> Vec<Row> {
    let signals = "SIGSTOP of all threads";
    vec![
        Row::new("leader-hangs", "the leader hangs, and its connections stay open", signals, Hangs).quick(),
        Row::new("follower-hangs", "a follower hangs, and its connections stay open", signals, Hangs)
            .at(Aim::Follower),
        Row::new(
            "leader-vanishes",
            "the leader's machine is gone, and refuses nothing",
            "nftables drops all of its packets, also those of clients",
            Losing { lost: Lost::All },
        ),
        Row::new(
            "follower-vanishes",
            "a follower's machine is gone, and refuses nothing",
            "nftables drops all of its packets, also those of clients",
            Losing { lost: Lost::All },
        )
        .at(Aim::Follower),
        Row::new(
            "sleeps",
            "the machine of the leader and of a holder sleeps, and wakes up",
            "SIGSTOP of both; a preloaded library holds back their CLOCK_MONOTONIC",
            Sleeps,
        )
        .locks()
        .and(Figure::Overlap, 0.5),
        Row::new(
            "clocks-fast",
            "the clocks of all nodes are slewed by +8.3 %",
            "a preloaded library replaces the kernel's function in the vDSO; the holder is cut off",
            Slewed { nodes_ppm: CHRONY_PPM, holder_ppm: 0 },
        )
        .locks()
        .ttl(12),
        Row::new(
            "clock-slow",
            "the clock of a holder is slewed by -8.3 %",
            "the same, for the holder",
            Slewed { nodes_ppm: 0, holder_ppm: -CHRONY_PPM },
        )
        .locks()
        .ttl(12),
        Row::new(
            "little-memory",
            "a node may use 4 MiB more than it does, and clients write",
            "`prlimit --data`; four clients acquire leases of 32 KB",
            LittleMemory::more(4 << 10),
        )
        .at(Aim::Node(memory::NODE))
        // It reads a log of many megabytes.
        .and(Figure::Healed, 25.0),
    ]
}

fn surroundings() -> Vec<Row> {
    let names = "a preloaded library answers `getaddrinfo`; a node is killed and starts again";
    let named = |name, broken, names_are, made| {
        Row::new(name, broken, made, Named::with(names_are))
            .at(Aim::Follower)
            .lasts(30)
            .and(Figure::Rejoined, 20.0)
    };
    vec![
        named("names-late", "each lookup of a name takes 5 s", Names::Late, names).and(Figure::Founded, 35.0),
        named("names-gone", "no name is found any more, after 5 s each", Names::Gone, names),
        named(
            "names-first-dead",
            "of two addresses of each name, the first is dead",
            Names::FirstDead,
            names,
        )
        .and(Figure::Founded, 20.0),
        Row::new(
            "log-unread",
            "nobody reads the logs of the nodes",
            "pipes that are full",
            Unread::default(),
        )
        .quick(),
        Row::new("log-full", "the disk for logs is full", "/dev/full", Full::default()),
        Row::new(
            "leaders-flap",
            "another node leads every 4 s, and nothing is asked of the cluster",
            "`POST /v1/cluster/transfer`",
            Flapping { each: Duration::from_secs(4), transfers: 0 },
        )
        .idle()
        .ttl(12)
        .lasts(35),
        Row::new("redis-hangs", "Redis hangs, and nodes answer once it has a fence", "SIGSTOP", HungRedis)
            // Only the first ones wait for Redis: then it is known to hang.
            .and(Figure::GrantTook, 0.5)
            .quick(),
    ]
}

fn directories() -> Vec<Row> {
    let copies = "`cp -a` while the node is down";
    vec![
        Row::new(
            "older-copy",
            "a follower's data is put back to an older copy, and the leader leads on",
            copies,
            Copied::and(Use::PutBack),
        )
        .at(Aim::Follower)
        .and(Figure::Unnamed, 0.0)
        // As many as to any node that is down.
        .and(Figure::Connections, 50.0),
        Row::new(
            "older-copy-alone",
            "a follower's data is put back, and of the others the one remains that lacks the latest grants",
            copies,
            Copied::and(Use::PutBackAlone),
        )
        .at(Aim::Follower)
        .and(Figure::Unnamed, 0.0)
        // Nothing can be granted before one of the other two is back.
        .but([
            Figure::NoGrant,
            Figure::NoRenewal,
            Figure::LostLeases,
            Figure::NextHolder,
            Figure::Overtaken,
            Figure::Overlap,
        ]),
        Row::new(
            "clone",
            "a copy of a follower runs beside it at another address, and the leader dies",
            copies,
            Copied::and(Use::Beside),
        )
        .at(Aim::Follower)
        .and(Figure::Unnamed, 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_promise_something() {
        let rows = rows();
        let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| row.promise.figures().count() >= 4));
        let quick = rows.iter().filter(|row| row.is_quick).count();
        assert!((1..=4).contains(&quick), "{quick} rows are quick");
        assert!(rows.iter().all(|row| row.course.lasts < Duration::from_secs(60)));
        // A waiter that is not granted in time is seen to be.
        let sees = |row: &Row| {
            let most = row.promise.most(Figure::NextHolder).unwrap_or_default();
            row.course.lasts.as_secs_f64() > row.course.ttl.as_secs_f64() + most
        };
        assert!(rows.iter().all(sees));
    }
}
