use std::path::PathBuf;
use std::time::Duration;

use redis::{
    Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates, io::tcp::TcpSettings,
};

use uuid::Uuid;

use crate::names::Names;
use crate::redis_url::RedisUrl;

/// How the mirror is configured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where Redis is: `redis://[user:password@]host:port[/db]`, `redis+cluster://host:port,…` or
    /// `redis+sentinel://host:port,…/name[/db][?sentinel-user=…&sentinel-password=…]`; with `rediss` for TLS.
    pub url: String,
    /// Whether answers wait.
    pub mode: MirrorMode,
    /// How long they do.
    pub timeout: Duration,
    /// What the names of all keys in Redis start with.
    pub prefix: String,
    /// How long the hash of a key stays that was freed.
    pub retention: Duration,
    /// How many keys a second are compared with Redis when nothing seems wrong, to find what a foreign hand did; 0 for
    /// none.
    pub sweep_keys_per_s: u32,
    /// A file with the certificates (PEM) of the authorities to trust, in place of the system's.
    pub tls_ca: Option<PathBuf>,
    /// The cluster whose Redis is taken over though it is alive. Others are waited for until they are gone.
    pub take_over: Option<Uuid>,
}

/// Whether the answer to a grant waits for Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorMode {
    /// A grant never waits.
    #[default]
    Async,
    /// A grant is answered when its fence stands in Redis, or after the timeout.
    BeforeAnswer,
}

/// A setting that will not do.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {why}")]
pub struct SettingsError {
    /// Which, as `mirror.timeout`.
    pub field: &'static str,
    /// Why.
    pub why: String,
}

/// Settings that were checked.
pub(crate) struct Checked {
    pub(crate) url: RedisUrl,
    pub(crate) mode: MirrorMode,
    pub(crate) timeout: Duration,
    pub(crate) names: Names,
    pub(crate) retention: Duration,
    pub(crate) sweep_keys_per_s: u32,
    pub(crate) take_over: Option<Uuid>,
    certificates: Option<Vec<u8>>,
}

impl Settings {
    /// Redis at this URL, and for the rest the defaults: `async`, 1 s, `ringfence`, 24 h, 2,000 keys a second.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            mode: MirrorMode::Async,
            timeout: Duration::from_secs(1),
            prefix: "ringfence".to_owned(),
            retention: Duration::from_secs(24 * 60 * 60),
            sweep_keys_per_s: 2_000,
            tls_ca: None,
            take_over: None,
        }
    }

    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let url = RedisUrl::parse(&self.url).map_err(refuse("redis"))?;
        let hour = Duration::from_secs(60 * 60);
        if !(Duration::from_millis(1)..=hour).contains(&self.timeout) {
            return Err(refuse("mirror.timeout")("it is from 1 ms to 1 h".to_owned()));
        }
        if !(Duration::from_secs(1)..=hour * 24 * 365).contains(&self.retention) {
            return Err(refuse("mirror.retention")("it is from 1 s to 365 days".to_owned()));
        }
        // Neither a brace, which would be taken for the hash tag, nor what SCAN takes for a pattern.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_plain) {
            let why = "it has 1 to 64 of the characters A-Z a-z 0-9 . _ : / -";
            return Err(refuse("mirror.prefix")(why.to_owned()));
        }
        let certificates = self.tls_ca.map(|path| {
            let read = std::fs::read(&path);
            read.map_err(|error| refuse("mirror.tls-ca")(format!("cannot read {}: {error}", path.display())))
        });
        let checked = Checked {
            url,
            mode: self.mode,
            timeout: self.timeout,
            names: Names::new(&self.prefix),
            retention: self.retention,
            sweep_keys_per_s: self.sweep_keys_per_s,
            take_over: self.take_over,
            certificates: certificates.transpose()?,
        };
        if checked.certificates.is_some() && !checked.url.tls {
            let why = "it is for TLS, and the URL's scheme is not rediss";
            return Err(refuse("mirror.tls-ca")(why.to_owned()));
        }
        // Whether the certificates can be read.
        checked.client("localhost", 1).map_err(|error| refuse("mirror.tls-ca")(error.to_string()))?;
        Ok(checked)
    }
}

impl Checked {
    /// Of a server that has the data.
    pub(crate) fn client(&self, host: &str, port: u16) -> redis::RedisResult<Client> {
        let login = login(self.url.user.as_ref(), self.url.password.as_ref()).set_db(self.url.db);
        self.open(host, port, login)
    }

    /// Of a Sentinel.
    pub(crate) fn sentinel(&self, host: &str, port: u16) -> redis::RedisResult<Client> {
        self.open(host, port, login(self.url.sentinel_user.as_ref(), self.url.sentinel_password.as_ref()))
    }

    fn open(&self, host: &str, port: u16, login: RedisConnectionInfo) -> redis::RedisResult<Client> {
        let host = host.to_owned();
        let address = match self.url.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = address.into_connection_info()?.set_redis_settings(login).set_tcp_settings(tcp);
        match &self.certificates {
            None => Client::open(info),
            Some(root) => Client::build_with_tls(
                info,
                TlsCertificates { client_tls: None, root_cert: Some(root.clone()) },
            ),
        }
    }
}

fn login(user: Option<&String>, password: Option<&String>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

fn refuse(field: &'static str) -> impl Fn(String) -> SettingsError {
    move |why| SettingsError { field, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_will_not_do_is_refused_by_name() {
        let good = || Settings::new("redis://localhost");
        assert!(good().check().is_ok());
        for (field, bad) in [
            ("redis", Settings::new("localhost:6379")),
            ("mirror.timeout", Settings { timeout: Duration::ZERO, ..good() }),
            ("mirror.retention", Settings { retention: Duration::ZERO, ..good() }),
            ("mirror.prefix", Settings { prefix: "a{b".to_owned(), ..good() }),
            ("mirror.prefix", Settings { prefix: "a*".to_owned(), ..good() }),
            ("mirror.prefix", Settings { prefix: String::new(), ..good() }),
            (
                "mirror.tls-ca",
                Settings { tls_ca: Some("/nowhere".into()), ..Settings::new("rediss://localhost") },
            ),
            ("mirror.tls-ca", Settings { tls_ca: Some("/dev/null".into()), ..good() }),
        ] {
            let refused = bad.check().err().unwrap();
            assert_eq!(refused.field, field, "{refused}");
        }
    }
}
