//! A real Prometheus server on a loopback address of its own, from the system's package.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Server, folder, mortal};
use crate::{Client, Error};

/// Not the usual one, which a server of the system may have on all addresses.
const PORT: u16 = 9490;

/// One server with its own data. It ends with the test program.
#[derive(Debug)]
pub struct PrometheusServer {
    client: Client,
    _server: Server,
    _loopback: Loopback,
    _dir: TempDir,
}

impl PrometheusServer {
    /// Starts one in a directory with these files, `prometheus.yml` among them, and waits until it is ready.
    pub async fn start(files: &[(&str, &str)]) -> Result<Self, Error> {
        let (dir, loopback) = (folder("prometheus")?, Loopback::claim()?);
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).map_err(Error::io("cannot configure Prometheus"))?;
        }
        let address = loopback.at(PORT);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let mut command = mortal("prometheus");
        command.arg(format!("--config.file={}", path("prometheus.yml")));
        command.arg(format!("--storage.tsdb.path={}", path("data")));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=warn");
        let server = Server::start_new("Prometheus", dir.path().join("log"), command)?;
        let client = Client::new(address);
        let is_ready =
            async || client.raw("GET", "/-/ready", "").await.is_ok_and(|answer| answer.status == 200);
        server.ready(is_ready).await?;
        Ok(Self { client, _server: server, _loopback: loopback, _dir: dir })
    }

    /// The current value of `expression`: the `result` of the answer, or the error.
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
