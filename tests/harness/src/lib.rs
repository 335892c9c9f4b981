//! Starts, drives, stops and kills real Ringfence processes for tests.
//!
//! ```text
//!  Cluster ──▶ Node ──▶ process ──▶ ringfence serve       signals, exit codes, log files
//!                └────▶ Client ──▶ connection ──HTTP──▶   typed calls
//!  HttpConnection                         untyped calls at the least CPU, for load generators
//!  Load ──▶ Client, many of them          remembers what it was answered; Known::check: is it still true?
//!  Disk, Injection                        full disks, power cuts, system calls that fail or take long
//!  Clocks                                 clocks that are off, and jump
//!  RedisServer, RedisSentinel, RedisCluster   real Redis: killed, emptied, stopped, failed over
//!  PostgresServer, PgBouncer              the real ones, from the system's packages
//!  PrometheusServer                       a real one, to scrape and to alert
//!  Browser                                the system's Chromium
//!  EtcdCluster, ZooKeeperCluster          to be measured beside
//!  Shown                                  what a document tells its readers to paste into a shell
//! ```
//! What a test may rely on:
//!
//! - *unknown* is never counted as *failed*: a call gives a [`Reply`], or a [`Failure`] whose [`Fate`] says whether it
//!   was certainly not done or may have been done;
//! - only processes that were started here are ever signalled, through the handle that also reaps them; they end with
//!   the cluster, and with the test program, however that ends;
//! - each cluster has a loopback address of its own, so ports never collide and a restarted node finds its own free; or a
//!   [`Network`] of its own, where traffic can be cut;
//! - what [`Askers`] and a [`Holder`] were told while a cluster was disturbed is checked as a whole in the end;
//! - a cluster that is dropped fails the test if a node ever panicked; after a failed test it keeps its directory and
//!   shows the ends of the logs.

mod answer;
mod browser;
mod churn;
mod client;
mod clocks;
mod cluster;
mod connection;
mod disk;
mod error;
mod etcd_cluster;
mod holder;
mod http;
mod known;
mod load;
mod loopback;
mod namespace;
mod network;
mod node;
mod place;
mod postgres_server;
mod process;
mod program;
mod prometheus_server;
mod record;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
mod shown;
mod spawner;
mod strace;
mod tls;
mod until;
mod watch;
mod wish;
mod zookeeper_cluster;

pub use answer::{Acquired, Answered, Called, Failure, Fate, LeaseView, Reply};
pub use browser::Browser;
pub use churn::{Kept, churn};
pub use client::{Client, Consistency, metric};
pub use clocks::{Clocks, clock_is_off};
pub use cluster::{Builder, Cluster};
pub use connection::RawAnswer;
pub use disk::{Disk, cut_power, may_mount};
pub use error::Error;
pub use etcd_cluster::EtcdCluster;
pub use holder::Holder;
pub use http::{HttpAnswer, HttpConnection};
pub use known::Known;
pub use load::Load;
pub use network::Network;
pub use node::{LeftBehind, Node};
pub use postgres_server::{PgBouncer, PostgresServer};
pub use program::{Ended, run};
pub use prometheus_server::PrometheusServer;
pub use record::{Askers, Record, Told};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_server::{RedisBuilder, RedisServer};
pub use shown::Shown;
pub use strace::{Injection, may_inject};
pub use until::{definite, until};
pub use watch::{Watch, Watched};
pub use wish::{key, try_once, wait_for};
pub use zookeeper_cluster::ZooKeeperCluster;
