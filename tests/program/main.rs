//! The program from outside, as its users and operators meet it: real nodes, real networks and disks where faults are made.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod access;
mod attackers;
mod backup;
mod cert;
mod client;
mod commands;
mod damaged_logs;
mod dashboard;
mod demo;
mod descriptors;
mod dev;
mod drill;
mod ends;
mod failed_syncs;
mod failover;
mod file_access;
mod founding;
mod full_disk;
mod gateway;
mod grants;
mod guards;
mod hostile;
mod inspect;
mod lock;
mod members;
mod metrics;
mod mirror;
mod names;
mod operations;
mod packaging;
mod partitions;
mod pauses;
mod peer_port;
mod peer_tls;
mod power_cuts;
mod recipes;
mod refusals;
mod request_logs;
mod resp;
mod resp_port;
mod restart;
mod secrets;
mod security;
mod silent_nodes;
mod slow_disks;
mod snapshots;
mod strangers;
mod support;
mod tls;
mod unread_logs;
mod wait_ready;
mod waiting;
mod wall_clocks;
mod watch;

#[path = "../../guard/storage/src/main.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod storage;
