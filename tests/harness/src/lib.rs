//! Starts, drives, stops and kills real Ringfence processes for tests.
//!
//! ```text
//!  Cluster ──▶ Node ──▶ process ──▶ ringfence serve       signals, exit codes, log files
//!                └────▶ Client ──▶ connection ──HTTP──▶   typed calls
//!  HttpConnection                         untyped calls with little CPU, for load generators
//!  Load ──▶ many Clients                  records answers; Record::check checks them afterwards
//!  Workers                                what goes on until a test has seen enough
//!  Disk, Injection                        full disks, power cuts, system calls that fail or are slow
//!  Clocks                                 wrong and jumping clocks
//!  Lookups                                names, and slow lookups of them
//!  Proxy, BlackHoles                      connections that are slow, lose bytes, or are never made
//!  RedisServer, RedisSentinel, RedisCluster   real Redis servers
//!  PostgresServer, PgBouncer, MariaDbServer   real servers, from the system's packages
//!  PrometheusServer                       a real server
//!  Browser                                the system's Chromium
//!  Trio ◀── EtcdCluster, ZooKeeperCluster   for comparisons
//!  Shown                                  runs the shell sessions of a document
//! ```
//! Guarantees:
//!
//! - *Unknown* is never counted as *failed*: a call returns a [`Reply`], or a [`Failure`] whose [`Fate`] says whether the
//!   request was certainly not done or may have been done.
//! - Only processes started here are signalled, through the handle that also reaps them. They end with the cluster and with
//!   the test program, however it ends.
//! - Each cluster has its own loopback address, so ports never collide, also after a restart; or its own [`Network`], which
//!   can drop packets.
//! - Dropping a cluster fails the test if a node ever panicked. After a failed test the cluster keeps its directory and prints
//!   the ends of the logs.

mod answer;
mod black_holes;
mod browser;
mod churn;
mod client;
mod clocks;
mod cluster;
mod connection;
mod disk;
mod error;
mod etcd_cluster;
mod frozen;
mod http;
mod load;
mod lookups;
mod loopback;
mod mariadb_server;
mod namespace;
mod network;
mod node;
mod postgres_server;
pub mod preload;
mod process;
mod program;
mod prometheus_server;
mod proxy;
mod record;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
mod requests;
mod shown;
mod strace;
mod tls;
mod trio;
mod until;
mod watch;
mod workers;
mod zookeeper_cluster;

pub use answer::{Acquired, Answered, Called, LeaseView, Reply};
pub use black_holes::BlackHoles;
pub use browser::Browser;
pub use churn::{Kept, churn, churn_past, churn_until, noise};
pub use client::{Client, Consistency, metric};
pub use clocks::{Clocks, clock_is_off};
pub use cluster::{Builder, Cluster};
pub use connection::RawAnswer;
pub use disk::{Disk, cut_power, may_mount};
pub use error::{Error, Failure, Fate, available};
pub use etcd_cluster::EtcdCluster;
pub use frozen::Frozen;
pub use http::{HttpAnswer, HttpConnection, send_acquire};
pub use load::Load;
pub use lookups::Lookups;
pub use mariadb_server::MariaDbServer;
pub use network::Network;
pub use node::{LeftBehind, Node};
pub use postgres_server::{PgBouncer, PostgresServer};
pub use process::stands_still;
pub use program::{Ended, run};
pub use prometheus_server::PrometheusServer;
pub use proxy::{Delivery, Direction, Proxy, splice};
pub use record::{Granted, Record};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_server::{RedisBuilder, RedisServer};
pub use requests::{granted, key, queued, released, take, try_once, wait_for};
pub use shown::Shown;
pub use strace::{Injection, may_inject};
pub use tls::Certificates;
pub use trio::Trio;
pub use until::{definite, until};
pub use watch::{Watch, Watched};
pub use workers::{Work, Workers};
pub use zookeeper_cluster::ZooKeeperCluster;
