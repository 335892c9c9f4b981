//! What the field of a run is made of.

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::nemesis::Nemesis;

/// Options of a field.
#[derive(Clone, Debug)]
pub struct FieldOptions {
    /// The program of all nodes, at first.
    pub program: PathBuf,
    /// The program that reads their data in the end.
    pub inspector: PathBuf,
    /// The number of nodes.
    pub nodes: u64,
    /// The nemeses: nodes get the disks and clocks that these need.
    pub nemeses: Vec<Nemesis>,
    /// Whether the nodes publish their fences to a Redis.
    pub redis: bool,
    /// Whether the nodes speak the Redis protocol.
    pub resp: bool,
    /// Additional arguments of `ringfence serve`.
    pub arguments: Vec<String>,
    /// Whether each node has a network namespace, which needs root; otherwise all are on loopback, with proxies in between.
    pub root: bool,
}

impl FieldOptions {
    /// Nodes of this program, without faults.
    pub fn new(program: impl Into<PathBuf>, nodes: u64) -> Self {
        let program = program.into();
        Self {
            inspector: program.clone(),
            program,
            nodes,
            nemeses: Vec::new(),
            redis: false,
            resp: false,
            arguments: Vec::new(),
            root: geteuid().is_root(),
        }
    }
}
