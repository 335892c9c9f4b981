//! A closed loop of HTTP clients, as thin as can be: it shares the cores with what it measures.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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

/// What came of it.
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
                let mut connection = Connection::open(http).await.unwrap();
                let body = format!(r#"{{"keys":["load/{client}"]}}"#);
                let mut took = Vec::new();
                while begun.elapsed() < time {
                    let id = uuid::Uuid::new_v4();
                    let start = Instant::now();
                    assert_eq!(
                        connection.call("PUT", &format!("/v1/leases/{id}"), &body).await.unwrap(),
                        201
                    );
                    took.push(start.elapsed().as_nanos() as f64 / 1e3);
                    assert_eq!(
                        connection.call("DELETE", &format!("/v1/leases/{id}"), "").await.unwrap(),
                        204
                    );
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

/// One HTTP/1.1 connection.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(http: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(http).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(1024) })
    }

    /// The status of the answer.
    async fn call(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<u16> {
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: l\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let Some(head) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).unwrap();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if self.buffer.len() >= head + 4 + length {
                return Ok(text[9..12].parse().unwrap());
            }
        }
    }
}
