use percent_encoding::percent_decode_str;

/// Where Redis is, of which kind, and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl {
    pub(crate) kind: Kind,
    pub(crate) tls: bool,
    /// The servers, or the Sentinels: host and port.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: i64,
    /// Who we are to the Sentinels.
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One server.
    Single,
    /// The master of this name, which Sentinels watch.
    Sentinel(String),
    /// A Redis Cluster, of which these are some.
    Cluster,
}

impl RedisUrl {
    /// Reads `redis[s][+cluster|+sentinel]://[user:password@]host[:port],…[/name][/db]`, and for Sentinels
    /// `?sentinel-user=…&sentinel-password=…` after it.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it starts with redis:// or rediss://")?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" => false,
            "rediss" => true,
            _ => return Err("it starts with redis:// or rediss://".to_owned()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains(['?', '#']) {
            return Err("it has no `#` and one `?` at most (percent-encode those in a password)".to_owned());
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
                        "it ends with the name of the master: redis+sentinel://host:26379/name".to_owned()
                    );
                }
                (Kind::Sentinel(decode(name)?), 26_379, db)
            }
            other => return Err(format!("+{other} is neither +cluster nor +sentinel")),
        };
        let hosts =
            hosts.split(',').map(|host| parse_host(host, default_port)).collect::<Result<Vec<_>, _>>()?;
        if kind == Kind::Single && hosts.len() > 1 {
            return Err("several servers are a redis+cluster:// or have a redis+sentinel://".to_owned());
        }
        let db = match db.trim_end_matches('/') {
            "" => 0,
            db => db.parse().ok().filter(|db| *db >= 0).ok_or("the database is a number")?,
        };
        if kind == Kind::Cluster && db != 0 {
            return Err("a Redis Cluster has no database other than 0".to_owned());
        }
        let given = |text: &str| if text.is_empty() { Ok(None) } else { decode(text).map(Some) };
        let (mut sentinel_user, mut sentinel_password) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match (pair.split_once('='), &kind) {
                (Some(("sentinel-user", user)), Kind::Sentinel(_)) => sentinel_user = given(user)?,
                (Some(("sentinel-password", password)), Kind::Sentinel(_)) => {
                    sentinel_password = given(password)?
                }
                // What it is, is not shown.
                _ => {
                    return Err("after `?` a redis+sentinel:// has sentinel-user=…&sentinel-password=…, and no other \
                                has anything"
                        .to_owned());
                }
            }
        }
        let (user, password) = (given(user)?, given(password)?);
        Ok(Self { kind, tls, hosts, user, password, db, sentinel_user, sentinel_password })
    }
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| "a percent-encoded part is no UTF-8".to_owned())
}

fn parse_host(host: &str, default_port: u16) -> Result<(String, u16), String> {
    // What it is, is not shown: it may be a part of a password.
    let bad = || "a host is no host:port (percent-encode `/`, `,` and `@` in a password)".to_owned();
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(bad)?;
            (name, port.strip_prefix(':'))
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| bad()))?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        Err(bad())
    } else {
        Ok((name.to_owned(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read() {
        let url = RedisUrl::parse("redis://localhost").ok().unwrap();
        assert_eq!(
            (url.kind, url.hosts, url.tls),
            (Kind::Single, vec![("localhost".to_owned(), 6379)], false)
        );
        let url = RedisUrl::parse("rediss+sentinel://me:p%40ss@[::1]:1,b/my%20name/3").ok().unwrap();
        assert_eq!(url.kind, Kind::Sentinel("my name".to_owned()));
        assert_eq!(url.hosts, [("::1".to_owned(), 1), ("b".to_owned(), 26_379)]);
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), Some("p@ss")));
        assert_eq!((url.db, url.tls), (3, true));
        assert_eq!((url.sentinel_user, url.sentinel_password), (None, None));
        let url = "redis+sentinel://a:b@c/name?sentinel-user=me&sentinel-password=p%26ss";
        let url = RedisUrl::parse(url).ok().unwrap();
        assert_eq!((url.user.as_deref(), url.sentinel_user.as_deref()), (Some("a"), Some("me")));
        assert_eq!(url.sentinel_password.as_deref(), Some("p&ss"));
        let url = RedisUrl::parse("redis+cluster://:secret@a:1,b:2").ok().unwrap();
        assert_eq!((url.kind, url.hosts.len()), (Kind::Cluster, 2));
        assert_eq!((url.user, url.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn what_is_none_is_refused() {
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
