//! Calls over RESP, as lock libraries for Redis make them: single commands, and short scripts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value, cmd};
use ringfence_harness::Client;
use ringfence_laws::history::{Conclusion, HUNG_UP, Invocation, Seen};
use ringfence_wire::{Key, ProblemKind, Token};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Sets all keys, or none, if the last of `KEYS` has the value that comes last: or if that is empty.
const SET: &str = "\
local count = #ARGV - 2
if ARGV[#ARGV] ~= '' and redis.call('get', KEYS[#KEYS]) ~= ARGV[#ARGV] then return -1 end
for at = 1, count do
  if redis.call('exists', KEYS[at]) == 1 then return 0 end
end
for at = 1, count do
  redis.call('set', KEYS[at], ARGV[at], 'px', ARGV[count + 1])
end
return 1";
const END_IF: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const EXPIRE_IF: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
/// What `GET` shows of a key that is held over HTTP.
const HELD_BY_ANOTHER: &[u8] = b"ringfence:held-by-another";

/// Connections, by node. Their owners share them, and their calls do not wait for each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<BTreeMap<u64, Connection>>>);

/// A connection, and the task that drives it.
#[derive(Clone, Debug)]
struct Connection {
    commands: MultiplexedConnection,
    driver: AbortHandle,
}

/// Closes a connection for all its owners when it is dropped, unless an answer has come.
struct HangsUp<'a> {
    from: &'a Connections,
    node: u64,
    driver: AbortHandle,
    is_answered: bool,
}

impl Connections {
    /// Asks a node, and hangs up if there is no answer in time.
    pub(super) async fn ask(
        &self,
        node: u64,
        client: &Client,
        invocation: &Invocation,
        patience: Duration,
    ) -> Conclusion {
        let Some(command) = command(invocation) else {
            return Conclusion::NotDone { why: "not a call over RESP".into() };
        };
        let known = self.all().get(&node).filter(|known| !known.driver.is_finished()).cloned();
        let connected = match known {
            Some(connection) => Ok(connection),
            None => match timeout(patience, Connection::open(client, patience)).await {
                Ok(opened) => opened.map_err(|error| error.to_string()),
                Err(_) => Err("no connection in time".to_owned()),
            },
        };
        let Connection { mut commands, driver } = match connected {
            Ok(connection) => connection,
            Err(why) => return Conclusion::NotDone { why },
        };
        let mut hangs_up = HangsUp { from: self, node, driver: driver.clone(), is_answered: false };
        self.all().insert(node, Connection { commands: commands.clone(), driver });
        match timeout(patience, command.query_async::<Value>(&mut commands)).await {
            Err(_) => Conclusion::Unknown { why: format!("{HUNG_UP}, as there was no answer in time") },
            Ok(Err(error)) if is_broken(&error) => Conclusion::Unknown { why: error.to_string() },
            Ok(answer) => {
                hangs_up.is_answered = true;
                conclusion(invocation, answer)
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.0.lock().expect("no panic while the connections are locked")
    }
}

impl Connection {
    async fn open(client: &Client, patience: Duration) -> RedisResult<Self> {
        let stream = client.resp().await?;
        stream.set_nodelay(true)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(2 * patience));
        let info = RedisConnectionInfo::default();
        let (commands, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        Ok(Self { commands, driver: tokio::spawn(driver).abort_handle() })
    }
}

impl Drop for HangsUp<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            // The driver by itself waits for answers.
            self.driver.abort();
            let mut all = self.from.all();
            if all.get(&self.node).is_some_and(|known| known.driver.id() == self.driver.id()) {
                all.remove(&self.node);
            }
        }
    }
}

fn command(invocation: &Invocation) -> Option<Cmd> {
    let script = |text, keys: usize| {
        let mut command = cmd("EVAL");
        command.arg(text).arg(keys);
        command
    };
    let mut command = match invocation {
        Invocation::Set { only_if: None, keys, .. } if keys.len() == 1 => cmd("SET"),
        Invocation::Set { keys, only_if, .. } => script(SET, keys.len() + usize::from(only_if.is_some())),
        Invocation::EndIf { .. } => script(END_IF, 1),
        Invocation::ExpireIf { .. } => script(EXPIRE_IF, 1),
        Invocation::Token { .. } => cmd("RINGFENCE.TOKEN"),
        Invocation::Get { .. } => cmd("GET"),
        _ => return None,
    };
    command.arg(invocation.keys().into_iter().map(Key::as_str).collect::<Vec<_>>());
    match invocation {
        Invocation::Set { keys, ttl_ms, only_if: None } if keys.len() == 1 => {
            command.arg(keys[0].value.to_string()).arg("NX").arg("PX").arg(*ttl_ms);
        }
        Invocation::Set { keys, ttl_ms, only_if } => {
            command.arg(keys.iter().map(|at| at.value.to_string()).collect::<Vec<_>>());
            let value = only_if.as_ref().map_or_else(String::new, |at| at.value.to_string());
            command.arg(*ttl_ms).arg(value);
        }
        Invocation::EndIf { at } | Invocation::Token { at } => {
            command.arg(at.value.to_string());
        }
        Invocation::ExpireIf { at, ttl_ms } => {
            command.arg(at.value.to_string()).arg(*ttl_ms);
        }
        _ => {}
    }
    Some(command)
}

/// Whether there was no answer, rather than an error as the answer.
fn is_broken(error: &RedisError) -> bool {
    error.code().is_none()
}

fn conclusion(invocation: &Invocation, answer: RedisResult<Value>) -> Conclusion {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return failed(&error),
    };
    let refused = |problem| Conclusion::Refused { problem, reason: None };
    match (invocation, &answer) {
        (Invocation::Set { .. }, Value::Okay | Value::Int(1)) => Conclusion::Done,
        (Invocation::Set { .. }, Value::Nil | Value::Int(0)) => refused(ProblemKind::Held),
        (Invocation::Set { only_if: Some(_), .. }, Value::Int(-1)) => refused(ProblemKind::LeaseGone),
        (Invocation::EndIf { .. } | Invocation::ExpireIf { .. }, Value::Int(1)) => Conclusion::Done,
        (Invocation::EndIf { .. } | Invocation::ExpireIf { .. }, Value::Int(0)) => {
            refused(ProblemKind::LeaseGone)
        }
        (Invocation::Token { .. }, Value::Nil) => refused(ProblemKind::LeaseGone),
        (Invocation::Token { .. }, Value::Int(token)) if *token > 0 => {
            Conclusion::Token { token: Token(token.unsigned_abs()) }
        }
        (Invocation::Get { .. }, Value::Nil) => Conclusion::Value { seen: Seen::Nothing },
        (Invocation::Get { .. }, Value::BulkString(value)) if value == HELD_BY_ANOTHER => {
            Conclusion::Value { seen: Seen::Other }
        }
        (Invocation::Get { .. }, Value::BulkString(value)) => {
            let value = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let malformed =
                || Conclusion::Malformed { why: format!("no client has set what GET answers: {answer:?}") };
            value.map_or_else(malformed, |value| Conclusion::Value { seen: Seen::Value(value) })
        }
        _ => Conclusion::Malformed { why: format!("{answer:?}") },
    }
}

/// An error as the answer.
fn failed(error: &RedisError) -> Conclusion {
    let (code, why) = (error.code().unwrap_or_default(), error.to_string());
    match code {
        "LOADING" => Conclusion::NotDone { why },
        "OOM" => Conclusion::Refused { problem: ProblemKind::Overloaded, reason: None },
        _ if why.contains("may have been done") || why.contains("is taken back") => {
            Conclusion::Unknown { why }
        }
        _ if why.contains("it was not done") => Conclusion::NotDone { why },
        _ => Conclusion::Malformed { why },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use ringfence_laws::history::ValuedKey;
    use ringfence_wire::LeaseId;

    use super::*;

    /// Where a node words its errors.
    const NODE: &str = include_str!("../../../resp/src/refused.rs");

    fn at(number: u128) -> ValuedKey {
        ValuedKey {
            key: Key::new(&format!("k{number}")).unwrap(),
            value: LeaseId::from_u128(number).unwrap(),
        }
    }

    fn set(count: u128, only_if: Option<u128>) -> Invocation {
        Invocation::Set { keys: (1..=count).map(at).collect(), ttl_ms: 900, only_if: only_if.map(at) }
    }

    fn words(invocation: &Invocation) -> Vec<String> {
        let packed = String::from_utf8(command(invocation).unwrap().get_packed_command()).unwrap();
        packed
            .split("\r\n")
            .skip(2)
            .step_by(2)
            .map(|word| word.replace("00000000-0000-0000-0000-00000000000", "v"))
            .collect()
    }

    #[test]
    fn one_key_is_a_command_and_what_needs_more_is_a_script() {
        assert_eq!(words(&set(1, None)), ["SET", "k1", "v1", "NX", "PX", "900"]);
        assert_eq!(words(&set(2, None))[2..], ["2", "k1", "k2", "v1", "v2", "900", ""]);
        assert_eq!(words(&set(1, Some(7)))[2..], ["2", "k1", "k7", "v1", "900", "v7"]);
        assert_eq!(words(&Invocation::ExpireIf { at: at(1), ttl_ms: 5 })[2..], ["1", "k1", "v1", "5"]);
        assert_eq!(words(&Invocation::Token { at: at(1) }), ["RINGFENCE.TOKEN", "k1", "v1"]);
        assert!(command(&Invocation::Release { lease: at(1).value }).is_none());
    }

    #[test]
    fn an_error_is_certain_only_if_it_says_so() {
        let error = |text: &str| {
            let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
            error.and_then(|value| value.extract_error()).unwrap_err()
        };
        let said = |text: &str| failed(&error(text));
        for text in [
            "LOADING ringfence: no leader accepted it in time: it was not done",
            "ERR ringfence: others changed its keys again and again: it was not done",
            "ERR ringfence: it was not done",
        ] {
            assert!(NODE.contains(text));
            assert!(matches!(said(text), Conclusion::NotDone { .. }));
        }
        for text in [
            "ERR ringfence: it may have been done, or may be done later. A lock that it took is taken back",
            "ERR ringfence: the mirror did not have it in time. A lock that it took is taken back; one that it ended has ended",
        ] {
            assert!(NODE.contains(text));
            assert!(matches!(said(text), Conclusion::Unknown { .. }));
        }
        assert!(matches!(said("ERR unknown command 'SET'"), Conclusion::Malformed { .. }));
        assert!(!is_broken(&error("ERR what")));
        assert!(is_broken(&std::io::Error::other("closed").into()));
    }

    #[test]
    fn an_answer_means_what_libraries_take_it_for() {
        let held = Conclusion::Refused { problem: ProblemKind::Held, reason: None };
        let gone = Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None };
        let get = Invocation::Get { key: at(1).key };
        for (invocation, answer, means) in [
            (set(1, None), Value::Okay, Conclusion::Done),
            (set(1, None), Value::Nil, held.clone()),
            (set(2, None), Value::Int(0), held),
            (set(2, Some(7)), Value::Int(-1), gone.clone()),
            (Invocation::EndIf { at: at(1) }, Value::Int(0), gone.clone()),
            (Invocation::Token { at: at(1) }, Value::Nil, gone),
            (Invocation::Token { at: at(1) }, Value::Int(5), Conclusion::Token { token: Token(5) }),
            (get.clone(), Value::Nil, Conclusion::Value { seen: Seen::Nothing }),
            (
                get.clone(),
                Value::BulkString(at(7).value.to_string().into_bytes()),
                Conclusion::Value { seen: Seen::Value(at(7).value) },
            ),
            (
                get.clone(),
                Value::BulkString(HELD_BY_ANOTHER.to_vec()),
                Conclusion::Value { seen: Seen::Other },
            ),
        ] {
            assert_eq!(conclusion(&invocation, Ok(answer)), means);
        }
        for (invocation, answer) in [
            (set(2, None), Value::Int(-1)),
            (get, Value::BulkString(b"x".to_vec())),
            (set(1, None), Value::Int(2)),
        ] {
            assert!(matches!(conclusion(&invocation, Ok(answer)), Conclusion::Malformed { .. }));
        }
    }
}
