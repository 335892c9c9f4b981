use std::net::IpAddr;

/// The longest host name is 253 bytes long.
const MAX_BYTES: usize = 260;

/// Checks the address at which other nodes reach a node: `HOST:PORT`.
pub fn check_peer_address(address: &str) -> Result<(), &'static str> {
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = is_number && port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_control() || c.is_whitespace());
    if !is_host || !is_port || address.len() > MAX_BYTES {
        return Err("must have the form HOST:PORT");
    }
    match is_unspecified(address) {
        true => Err("must be an address at which other nodes reach this one, not one that stands for any"),
        false => Ok(()),
    }
}

/// Whether `HOST:PORT` stands for any address of a machine, such as 0.0.0.0: a node can listen there, but not be reached.
pub fn is_unspecified(address: &str) -> bool {
    ip(address).is_some_and(|ip| ip.is_unspecified())
}

/// Whether `HOST:PORT` is reached from its own machine only.
pub fn is_loopback(address: &str) -> bool {
    ip(address).map_or_else(|| address.starts_with("localhost:"), |ip| ip.is_loopback())
}

fn ip(address: &str) -> Option<IpAddr> {
    let (host, _) = address.rsplit_once(':')?;
    host.trim_matches(['[', ']']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_that_others_can_reach_and_a_port() {
        for right in ["a:1", "10.0.0.1:65535", "[fe80::1]:7500", "127.0.0.1:7500"] {
            assert_eq!(check_peer_address(right), Ok(()), "{right}");
        }
        for wrong in [
            "",
            "a",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:x",
            "0.0.0.0:1",
            "[::]:1",
            "\u{16}:1",
            "a b:1",
            &"a".repeat(260),
        ] {
            assert!(check_peer_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_loopback_address_is_known() {
        for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"] {
            assert!(is_loopback(loopback), "{loopback}");
        }
        for other in ["", "10.0.0.1:1", "[fe80::1]:1", "localhost.example:1"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
