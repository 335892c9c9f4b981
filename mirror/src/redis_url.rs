use std::fmt::{self, Display, Formatter};

use percent_encoding::percent_decode_str;

/// Where Redis is, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl {
    pub(crate) kind: Kind,
    pub(crate) tls: bool,
    /// The servers, or the Sentinels.
    pub(crate) hosts: Vec<Address>,
    pub(crate) login: Login,
    pub(crate) db: i64,
    /// For Sentinels.
    pub(crate) sentinel_login: Login,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    /// The master of this name, watched by Sentinels.
    Sentinel(String),
    /// A Redis Cluster, of which some nodes are listed.
    Cluster,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// `None` instead of empty text.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl RedisUrl {
    /// Parses `redis[s][+cluster|+sentinel]://[user:password@]host[:port],…[/name][/db]`, for Sentinels with an optional
    /// `?sentinel-user=…&sentinel-password=…`. Errors never quote a part of the URL that may hold a password.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let scheme_error = || "must begin with redis:// or rediss://".to_owned();
        let (scheme, rest) = url.split_once("://").ok_or_else(scheme_error)?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" => false,
            "rediss" => true,
            _ => return Err(scheme_error()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains(['?', '#']) {
            return Err("`#` and a second `?` must be percent-encoded, as in a password".to_owned());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (kind, default_port, db) = match kind {
            "" => (Kind::Single, 6379, path),
            "cluster" => (Kind::Cluster, 6379, path),
            "sentinel" => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(
                        "must end with the name of the master: redis+sentinel://host:26379/name".to_owned()
                    );
                }
                (Kind::Sentinel(decode(name)?), 26_379, db)
            }
            other => return Err(format!("+{other} is neither +cluster nor +sentinel")),
        };
        let hosts =
            hosts.split(',').map(|host| parse_host(host, default_port)).collect::<Result<Vec<_>, _>>()?;
        if kind == Kind::Single && hosts.len() > 1 {
            return Err("several servers need redis+cluster:// or redis+sentinel://".to_owned());
        }
        let db = match db.trim_end_matches('/') {
            "" => 0,
            db => db.parse().ok().filter(|db| *db >= 0).ok_or("the database must be a number")?,
        };
        if kind == Kind::Cluster && db != 0 {
            return Err("a Redis Cluster has database 0 only".to_owned());
        }
        let mut sentinel_login = Login::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match (pair.split_once('='), &kind) {
                (Some(("sentinel-user", user)), Kind::Sentinel(_)) => sentinel_login.user = optional(user)?,
                (Some(("sentinel-password", password)), Kind::Sentinel(_)) => {
                    sentinel_login.password = optional(password)?;
                }
                _ => {
                    return Err("only redis+sentinel:// has parameters after `?`: \
                                sentinel-user=…&sentinel-password=…"
                        .to_owned());
                }
            }
        }
        let login = Login { user: optional(user)?, password: optional(password)? };
        Ok(Self { kind, tls, hosts, login, db, sentinel_login })
    }
}

fn optional(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() { Ok(None) } else { decode(text).map(Some) }
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| "a percent-encoded part is not UTF-8".to_owned())
}

fn parse_host(host: &str, default_port: u16) -> Result<Address, String> {
    let bad =
        || "a host must have the form host:port (percent-encode `/`, `,` and `@` in a password)".to_owned();
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(bad)?;
            (name, port.strip_prefix(':'))
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| bad()))?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(bad());
    }
    Ok(Address { host: name.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scheme and hosts, user and password.
    fn parsed(url: &str) -> (RedisUrl, String, [Option<String>; 4]) {
        let url = RedisUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let hosts: Vec<_> = url.hosts.iter().map(Address::to_string).collect();
        let (Login { user, password }, sentinel) = (url.login.clone(), url.sentinel_login.clone());
        (url, hosts.join(" "), [user, password, sentinel.user, sentinel.password])
    }

    #[test]
    fn each_kind_is_parsed() {
        let texts = |texts: [&str; 4]| texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
        let (url, hosts, _) = parsed("redis://localhost");
        assert_eq!((url.kind, &*hosts, url.tls), (Kind::Single, "localhost:6379", false));
        let (url, hosts, logins) = parsed("rediss+sentinel://me:p%40ss@[::1]:1,b/my%20name/3");
        assert_eq!((url.kind, &*hosts), (Kind::Sentinel("my name".to_owned()), "[::1]:1 b:26379"));
        assert_eq!((url.db, url.tls, logins), (3, true, texts(["me", "p@ss", "", ""])));
        let (_, _, logins) = parsed("redis+sentinel://a:b@c/name?sentinel-user=me&sentinel-password=p%26ss");
        assert_eq!(logins, texts(["a", "b", "me", "p&ss"]));
        let (url, hosts, logins) = parsed("redis+cluster://:secret@a:1,b:2");
        assert_eq!((url.kind, &*hosts), (Kind::Cluster, "a:1 b:2"));
        assert_eq!(logins, texts(["", "secret", "", ""]));
    }

    #[test]
    fn a_bad_url_is_refused() {
        for bad in [
            "localhost",
            "http://localhost",
            "redis://",
            "redis://a:b",
            "redis://a:99999",
            "redis://a,b",
            "redis+cluster://a/1",
            "redis+sentinel://a",
            "redis+other://a",
            "redis://a/x",
            "redis://a?x=1",
            "redis://a?sentinel-user=x",
            "redis+sentinel://a/name?password=x",
            "redis+sentinel://a/name?sentinel-user=a?",
            "redis://[::1",
            "redis://%ff@a",
            "redis://a/-1",
        ] {
            assert!(RedisUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
