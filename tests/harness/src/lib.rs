//! Starts, drives, stops and kills real Ringfence processes for tests.
//!
//! ```text
//!  Cluster ──▶ Node ──▶ process ──▶ ringfence serve       signals, exit codes, log files
//!                └────▶ Client ──▶ connection ──HTTP──▶   typed calls
//!  HttpConnection                         untyped calls that cost little CPU, for load generators
//!  Load ──▶ Client, many of them          records its answers; Record::check: are they still true?
//!  Disk, Injection                        full disks, power cuts, system calls that fail or take long
//!  Clocks                                 clocks that are wrong, and jump
//!  RedisServer, RedisSentinel, RedisCluster   real Redis: killed, emptied, stopped, failed over
//!  PostgresServer, PgBouncer              real ones, from the system's packages
//!  MariaDbServer                          a real one, likewise
//!  PrometheusServer                       a real one, that scrapes and alerts
//!  Browser                                the system's Chromium
//!  EtcdCluster, ZooKeeperCluster          peers, for measurements
//!  Shown                                  a document's shell sessions, run for real
//! ```
//! What a test may rely on:
//!
//! - *unknown* is never counted as *failed*: a call returns a [`Reply`], or a [`Failure`] whose [`Fate`] says whether the
//!   request was certainly not done or may have been done;
//! - only processes started here are ever signalled, through the handle that also reaps them; they end with the cluster,
//!   and with the test program, however that ends;
//! - each cluster has a loopback address of its own, so ports never collide and a restarted node finds its own free; or a
//!   [`Network`] of its own, that can drop packets;
//! - a cluster that is dropped fails the test if a node ever panicked; after a failed test it keeps its directory and
//!   prints the ends of the logs.

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
mod http;
mod load;
mod loopback;
mod mariadb_server;
mod namespace;
mod network;
mod node;
mod postgres_server;
mod process;
mod program;
mod prometheus_server;
mod record;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
mod requests;
mod shown;
mod strace;
mod tls;
mod until;
mod watch;
mod zookeeper_cluster;

pub use answer::{Acquired, Answered, Called, Failure, Fate, LeaseView, Reply};
pub use browser::Browser;
pub use churn::{Kept, churn};
pub use client::{Client, Consistency, metric};
pub use clocks::{Clocks, clock_is_off};
pub use cluster::{Builder, Cluster};
pub use connection::RawAnswer;
pub use disk::{Disk, cut_power, may_mount};
pub use error::{Error, available};
pub use etcd_cluster::EtcdCluster;
pub use http::{HttpAnswer, HttpConnection, send_acquire};
pub use load::Load;
pub use mariadb_server::MariaDbServer;
pub use network::Network;
pub use node::{LeftBehind, Node};
pub use postgres_server::{PgBouncer, PostgresServer};
pub use program::{Ended, run};
pub use prometheus_server::PrometheusServer;
pub use record::{Granted, Record};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_server::{RedisBuilder, RedisServer};
pub use requests::{granted, key, queued, try_once, wait_for};
pub use shown::Shown;
pub use strace::{Injection, may_inject};
pub use until::{definite, until};
pub use watch::{Watch, Watched};
pub use zookeeper_cluster::ZooKeeperCluster;
