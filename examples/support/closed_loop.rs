//! A closed loop of lean HTTP clients, which share the cores with what they measure.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ringfence_harness::HttpConnection;

/// Prints the median, the least and the most of `values`.
pub(crate) fn row(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let digits = if values[values.len() / 2] < 100.0 { 2 } else { 0 };
    println!(
        "{name:<56} {:>10.digits$} {:>10.digits$} {:>10.digits$}",
        values[values.len() / 2],
        values[0],
        values[values.len() - 1]
    );
}

/// The result of a run.
pub(crate) struct Load {
    pub(crate) took: Duration,
    /// Sorted; one per cycle.
    pub(crate) acquires_us: Vec<f64>,
}

impl Load {
    pub(crate) fn per_second(&self) -> f64 {
        self.acquires_us.len() as f64 / self.took.as_secs_f64()
    }

    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        self.acquires_us[((self.acquires_us.len() - 1) as f64 * quantile) as usize]
    }
}

/// A closed loop of `clients`, each acquiring and releasing a key of its own.
pub(crate) async fn cycles(http: SocketAddr, clients: usize, time: Duration) -> Load {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = HttpConnection::open(http).await.unwrap();
                let body = format!(r#"{{"keys":["load/{client}"]}}"#);
                let mut took = Vec::new();
                while begun.elapsed() < time {
                    let id = uuid::Uuid::new_v4();
                    let start = Instant::now();
                    connection.expect(201, "PUT", &format!("/v1/leases/{id}"), &body).await.unwrap();
                    took.push(start.elapsed().as_nanos() as f64 / 1e3);
                    connection.expect(204, "DELETE", &format!("/v1/leases/{id}"), "").await.unwrap();
                }
                took
            })
        })
        .collect();
    let mut acquires_us = Vec::new();
    for task in tasks {
        acquires_us.extend(task.await.unwrap());
    }
    acquires_us.sort_by(f64::total_cmp);
    Load { took: begun.elapsed(), acquires_us }
}
