use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    TlsCertificates,
};
use ringfence_tls::Authorities;
use uuid::Uuid;

use crate::names::Names;
use crate::redis_url::{Address, Login, RedisUrl};

/// Bounds each connection attempt and each command, so that a Redis that hangs is noticed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of the mirror.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where Redis is: `redis://[user:password@]host:port[/db]`, `redis+cluster://host:port,…` or
    /// `redis+sentinel://host:port,…/name[/db][?sentinel-user=…&sentinel-password=…]`; with `rediss` for TLS.
    pub url: String,
    /// Whether answers wait for Redis.
    pub mode: MirrorMode,
    /// How long they wait.
    pub timeout: Duration,
    /// The prefix of all names in Redis.
    pub prefix: String,
    /// How long Redis keeps the hash of a freed key.
    pub retention: Duration,
    /// How many keys a second the slow sweep compares, to find foreign writes; 0 turns it off.
    pub sweep_keys_per_s: u32,
    /// A PEM file of the authorities to trust instead of the system's. Whoever makes the mirror has it [loaded again](crate::Mirror::authorities).
    pub tls_ca: Option<PathBuf>,
    /// Take Redis over from this cluster even while it is alive. Any other owner must fall silent first.
    pub take_over: Option<Uuid>,
}

/// Whether the answer to a grant waits for Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorMode {
    /// A grant never waits.
    #[default]
    Async,
    /// A grant is answered once its fence is in Redis, or after the timeout.
    BeforeAnswer,
}

/// An invalid setting.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {why}")]
pub struct SettingsError {
    /// The setting, as `mirror.timeout`.
    pub field: &'static str,
    /// Why it is invalid.
    pub why: String,
}

/// Checked settings.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    pub(crate) url: RedisUrl,
    pub(crate) names: Names,
    pub(crate) authorities: Option<Arc<Authorities>>,
}

impl Settings {
    /// Redis at this URL, with the defaults: `async`, 1 s, `ringfence`, 24 h, 2,000 keys a second.
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

    pub(crate) fn check(self) -> Result<Config, SettingsError> {
        let refuse = |field, why: String| SettingsError { field, why };
        let url = RedisUrl::parse(&self.url).map_err(|why| refuse("redis", why))?;
        let hour = Duration::from_secs(60 * 60);
        if !(Duration::from_millis(1)..=hour).contains(&self.timeout) {
            return Err(refuse("mirror.timeout", "must be from 1 ms to 1 h".to_owned()));
        }
        if !(Duration::from_secs(1)..=hour * 24 * 365).contains(&self.retention) {
            return Err(refuse("mirror.retention", "must be from 1 s to 365 days".to_owned()));
        }
        // No brace, which would start the hash tag, and no pattern character of SCAN.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_plain) {
            let why = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : / -";
            return Err(refuse("mirror.prefix", why.to_owned()));
        }
        if self.prefix == "guard" {
            let why = "must not be `guard`: the numbers of the guard for Redis begin with it";
            return Err(refuse("mirror.prefix", why.to_owned()));
        }
        if self.tls_ca.is_some() && !url.tls {
            return Err(refuse("mirror.tls-ca", "the scheme of the URL must be rediss".to_owned()));
        }
        let authorities = self.tls_ca.clone().map(Authorities::load).transpose();
        let authorities = authorities.map_err(|error| refuse("mirror.tls-ca", error.to_string()))?;
        let authorities = authorities.map(Arc::new);
        Ok(Config { url, names: Names::new(&self.prefix), authorities, settings: self })
    }
}

impl Config {
    /// Connects to a server that has the data.
    pub(crate) async fn connect(&self, to: &Address) -> Result<MultiplexedConnection, RedisError> {
        open(self.client(to, &self.url.login, self.url.db)?).await
    }

    pub(crate) async fn connect_sentinel(&self, to: &Address) -> Result<MultiplexedConnection, RedisError> {
        open(self.client(to, &self.url.sentinel_login, 0)?).await
    }

    fn client(&self, to: &Address, login: &Login, db: i64) -> Result<Client, RedisError> {
        let Address { host, port } = to.clone();
        let address = match self.url.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let mut redis = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(db);
        if let Some(user) = &login.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &login.password {
            redis = redis.set_password(password);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = address.into_connection_info()?.set_redis_settings(redis).set_tcp_settings(tcp);
        let Some(authorities) = &self.authorities else { return Client::open(info) };
        let root_cert = Some(authorities.live().into_bytes());
        Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
    }
}

async fn open(client: Client) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_setting_is_refused_by_name() {
        let good = || Settings::new("redis://localhost");
        assert!(good().check().is_ok());
        for (field, bad) in [
            ("redis", Settings::new("localhost:6379")),
            ("mirror.timeout", Settings { timeout: Duration::ZERO, ..good() }),
            ("mirror.retention", Settings { retention: Duration::ZERO, ..good() }),
            ("mirror.prefix", Settings { prefix: "a{b".to_owned(), ..good() }),
            ("mirror.prefix", Settings { prefix: "a*".to_owned(), ..good() }),
            ("mirror.prefix", Settings { prefix: String::new(), ..good() }),
            ("mirror.prefix", Settings { prefix: "guard".to_owned(), ..good() }),
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
