//! A Prometheus server on a loopback address of its own, as it comes from a package. It ends with the test program.

use std::path::Path;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Process, mortal};
use crate::{Client, Error, until};

/// How long it may take to be ready.
const WITHIN: Duration = Duration::from_secs(60);
/// Not its usual one, which a server of the system may have on all addresses.
const PORT: u16 = 9490;

/// One server, with data of its own.
#[derive(Debug)]
pub struct PrometheusServer {
    client: Client,
    _process: Process,
    _loopback: Loopback,
    _dir: TempDir,
}

impl PrometheusServer {
    /// Starts one with these files beside each other, `prometheus.yml` among them, and waits until it is ready.
    pub async fn start(files: &[(&str, &str)]) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("ringfence-prometheus-").tempdir();
        let dir = dir.map_err(Error::io("cannot make a directory"))?;
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).map_err(Error::io("cannot configure Prometheus"))?;
        }
        let loopback = Loopback::claim()?;
        let address = loopback.at(PORT);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let mut command = mortal("prometheus");
        command.arg(format!("--config.file={}", path("prometheus.yml")));
        command.arg(format!("--storage.tsdb.path={}", path("data")));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=warn");
        let log = dir.path().join("log");
        let process = Process::start(command, &log).map_err(Error::io("cannot start Prometheus"))?;
        let client = Client::new(address);
        let is_ready = async || {
            let answer = client.raw("GET", "/-/ready", "").await.ok()?;
            (answer.status == 200).then_some(())
        };
        if let Err(error) = until(WITHIN, format!("Prometheus at {address} is ready"), is_ready).await {
            show(&log);
            return Err(error);
        }
        Ok(Self { client, _process: process, _loopback: loopback, _dir: dir })
    }

    /// What `expression` is now: the `result` of the answer, or the error.
    pub async fn query(&self, expression: &str) -> Result<Value, String> {
        let expression = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        self.get(&format!("/api/v1/query?query={expression}")).await.map(|mut data| data["result"].take())
    }

    /// The `data` of the answer at this path of its API, or the error.
    pub async fn get(&self, path: &str) -> Result<Value, String> {
        let answer = self.client.raw("GET", path, "").await.map_err(|failure| failure.to_string())?;
        let mut body: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        match body["status"].as_str() {
            Some("success") => Ok(body["data"].take()),
            _ => Err(body.to_string()),
        }
    }
}

fn show(log: &Path) {
    eprintln!("---- the log of Prometheus ----\n{}", std::fs::read_to_string(log).unwrap_or_default());
}
