//! `ringfence guard`: the files with which a store rejects stale writers.

use clap::{Args, ValueEnum};

use crate::cli::output;

#[derive(Debug, Args)]
#[command(after_help = "Each file begins with how to use it.")]
pub(crate) struct Arguments {
    /// Store to print the file for: `ringfence guard postgres | psql -v ON_ERROR_STOP=1 --single-transaction`
    store: Store,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    /// Functions and triggers for PostgreSQL 13 and later
    Postgres,
    /// A function and a procedure for the triggers of MySQL and MariaDB
    Mysql,
    /// A script for Redis
    Redis,
    /// A policy for objects of Kubernetes 1.30 and later
    Kubernetes,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = match arguments.store {
        Store::Postgres => include_str!("../../guard/sql/postgres.sql"),
        Store::Mysql => include_str!("../../guard/sql/mysql.sql"),
        Store::Redis => include_str!("../../guard/lua/guard.lua"),
        Store::Kubernetes => include_str!("../../guard/kubernetes/epoch.yaml"),
    };
    output::print(text).map(drop)
}
