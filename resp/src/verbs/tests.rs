use ringfence_lease::{Attachment, Condition, Found, KeyChange, Value};
use ringfence_wire::{LeaseId, Token};

use super::read::HELD;
use super::*;

const NAMING: Naming = Naming { database: 0, rules: ringfence_lease::NAMES };

/// `free`, `own` with the value `v` and the token 7, `taken`, and `waited`, which has a waiter.
fn transaction() -> Transaction {
    let own = Found::Own {
        token: Token(7),
        lease_id: LeaseId::random(),
        value: Value::new(b"v").unwrap(),
        until_ms: 15_000,
        expires_in_ms: 5_400,
        is_untold: false,
    };
    let waited = Found::Taken { expires_in_ms: None };
    let keys = [
        ("waited", waited),
        ("free", Found::Free),
        ("own", own),
        ("taken", Found::Taken { expires_in_ms: Some(3_000) }),
    ];
    Transaction::new(keys.into_iter().map(|(name, found)| (Key::new(name).unwrap(), found)))
}

/// The replies to the commands of `line`, which `;` separates, and the changes that they propose.
fn run(line: &str, context: Context) -> (String, String) {
    let mut transaction = transaction();
    let replies = line.split("; ").map(|command| {
        let arguments: Vec<Bytes> =
            command.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        match Verb::read(&arguments, context, NAMING).and_then(|verb| verb.run(&mut transaction)) {
            Ok(reply) => shown(&reply),
            Err(refused) => format!("-{}", refused.text()),
        }
    });
    let replies = replies.collect::<Vec<_>>().join("; ");
    let command = transaction.into_command(None, || (LeaseId::random(), Attachment(0)));
    let changes = command.iter().flat_map(|command| command.changes()).map(|change| match change {
        KeyChange::Acquire { key, ttl, value, .. } => {
            format!("acquire {key} {} {}", String::from_utf8_lossy(value.as_bytes()), ttl.ms())
        }
        KeyChange::Expire { key, token, ttl } => format!("expire {key} {token} {}", ttl.ms()),
        KeyChange::End { key, token } => format!("end {key} {token}"),
        KeyChange::Keep { key, token } => format!("keep {key} {token}"),
    });
    let changes = changes.collect::<Vec<_>>().join("; ");
    (replies, changes)
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Status(text) => format!("+{}", String::from_utf8_lossy(text)),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Integer(number) => format!(":{number}"),
        Reply::Null => "nil".to_owned(),
        other => format!("{other:?}"),
    }
}

const TAKEN: &str = "-ERR ringfence: the key is held over HTTP or by another principal, or somebody waits for it: it cannot be changed here";

#[test]
fn each_command_answers_and_changes_what_it_says() {
    for (line, reply, changes) in [
        ("SET free w NX PX 1000", "+OK", "acquire free w 1000"),
        ("set free w px 1 nx", "+OK", "acquire free w 100"),
        ("SET free w EX 86400 NX", "+OK", "acquire free w 86400000"),
        ("SET own w NX PX 1000", "nil", ""),
        ("SET own v NX PX 1000", "nil", ""),
        ("SET taken w NX PX 1000", "nil", ""),
        ("SET free w XX PX 1000", "nil", ""),
        ("SET own v XX PX 1000", "+OK", "expire own 7 1000"),
        ("SET own w XX PX 1000", "+OK", "end own 7; acquire own w 1000"),
        ("SET taken w XX PX 1000", TAKEN, ""),
        ("SET free w IFEQ v PX 1000", "nil", ""),
        ("SET own w IFEQ v PX 1000", "+OK", "end own 7; acquire own w 1000"),
        ("SET own v IFEQ v PX 1000", "+OK", "expire own 7 1000"),
        ("SET own v IFEQ w PX 1000", "nil", ""),
        ("SET taken w IFEQ v PX 1000", "nil", ""),
        ("SET taken w IFEQ ringfence:held-by-another PX 1000", "nil", ""),
        ("GET free", "nil", ""),
        ("GET own", "v", ""),
        ("GET taken", HELD, ""),
        ("GETRANGE free 0 5; GETRANGE own 0 5; GETRANGE own 1 5; GETRANGE own 0 -2", "; v; ; v", ""),
        ("GETRANGE own -1 -1; GETRANGE own -1 -2; GETRANGE own 1 0", "v; ; ", ""),
        (
            "GETRANGE taken 0 8; GETRANGE taken -7 -1; GETRANGE taken -9223372036854775808 9",
            "ringfence; another; ringfence:",
            "",
        ),
        ("GETRANGE taken 10 9223372036854775807", "held-by-another", ""),
        ("GETRANGE own 0 x", "-ERR value is not an integer or out of range", ""),
        ("EXISTS free own taken own", ":3", ""),
        ("MGET free own taken", "Array([Null, Bulk(b\"v\"), Bulk(b\"ringfence:held-by-another\")])", ""),
        ("TYPE free; TYPE own; TYPE taken", "+none; +string; +string", ""),
        ("PTTL free; PTTL own; PTTL taken; PTTL waited", ":-2; :5400; :3000; :100", ""),
        ("TTL free; TTL own; TTL taken; TTL waited", ":-2; :5; :3; :0", ""),
        ("EXPIRE free 1; EXPIRE own 1", ":0; :1", "expire own 7 1000"),
        ("PEXPIRE own 1", ":1", "expire own 7 100"),
        ("PEXPIRE own 0", ":1", "end own 7"),
        ("PEXPIRE own -5", ":1", "end own 7"),
        ("EXPIRE taken 1", TAKEN, ""),
        ("DEL free own own", ":1", "end own 7"),
        ("UNLINK own", ":1", "end own 7"),
        ("DEL taken", TAKEN, ""),
        ("DEL own taken", TAKEN, ""),
        ("DELEX own", ":1", "end own 7"),
        ("DELEX own IFEQ v", ":1", "end own 7"),
        ("DELEX own IFEQ w", ":0", ""),
        ("DELIFEQ own v", ":1", "end own 7"),
        ("DELIFEQ free v", ":0", ""),
        ("DELIFEQ taken ringfence:held-by-another", ":0", ""),
        ("PING", "+PONG", ""),
        ("PING a", "a", ""),
        ("ECHO a", "a", ""),
    ] {
        assert_eq!(run(line, Context::Alone), (reply.to_owned(), changes.to_owned()), "{line}");
    }
}

#[test]
fn times_are_set_under_conditions_kept_and_set_by_what_reads() {
    for (line, reply, changes) in [
        (
            "PEXPIRE own 9000 NX; PEXPIRE free 9000 XX; PEXPIRE own 9000 LT; PEXPIRE own 5000 GT",
            ":0; :0; :0; :0",
            "",
        ),
        ("PEXPIRE own 9000 gt", ":1", "expire own 7 9000"),
        ("EXPIRE own 5 LT XX", ":1", "expire own 7 5000"),
        ("PEXPIRE own 0 GT; PEXPIRE own 0 LT", ":0; :1", "end own 7"),
        ("PEXPIRE own 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible", ""),
        ("PEXPIRE own 1 GT LT", "-ERR GT and LT options at the same time are not compatible", ""),
        ("PEXPIRE own 1 x", "-ERR Unsupported option x", ""),
        ("PEXPIRE taken 9000 GT", TAKEN, ""),
        ("SET own v XX KEEPTTL", "+OK", ""),
        ("SET own w XX KEEPTTL", "+OK", "end own 7; acquire own w 5400"),
        ("SET own w IFEQ v KEEPTTL", "+OK", "end own 7; acquire own w 5400"),
        ("SET free w XX KEEPTTL", "nil", ""),
        ("SET taken w XX KEEPTTL", TAKEN, ""),
        ("SET own w XX KEEPTTL PX 5", "-ERR syntax error", ""),
        ("GETEX own; GETEX free PX 1000; GETEX taken", "v; nil; ringfence:held-by-another", ""),
        ("GETEX own PX 1000", "v", "expire own 7 1000"),
        ("GETEX own EX 0", "-ERR invalid expire time in 'getex' command", ""),
        ("GETEX taken PX 1000", TAKEN, ""),
        ("GETDEL own; GETDEL own; GETDEL free", "v; nil; nil", "end own 7"),
        ("GETDEL taken", TAKEN, ""),
    ] {
        assert_eq!(run(line, Context::Alone), (reply.to_owned(), changes.to_owned()), "{line}");
    }
}

#[test]
fn commands_of_one_request_see_what_those_before_them_left() {
    for (line, replies, changes) in [
        ("SET free w NX PX 1000; SET free x NX PX 1000; GET free", "+OK; nil; w", "acquire free w 1000"),
        ("SET free w NX PX 1000; PEXPIRE free 2000; PTTL free", "+OK; :1; :2000", "acquire free w 2000"),
        ("SET free w NX PX 1000; DEL free; EXISTS free", "+OK; :1; :0", ""),
        ("PEXPIRE own 900; PTTL own; DEL own; PTTL own", ":1; :900; :1; :-2", "end own 7"),
        ("SET own w XX PX 1000; SET own w IFEQ w PX 900", "+OK; +OK", "end own 7; acquire own w 900"),
        // The lock that the transaction leaves has a time.
        ("SETNX free w; PTTL free; TTL free; PEXPIRE free 900 NX", ":1; :-1; :-1; :1", "acquire free w 900"),
        ("SETNX own w; SETNX taken w", ":0; :0", ""),
        ("SET free w NX; PEXPIRE free 900 GT; PEXPIRE free 900 XX", "+OK; :0; :0", ""),
        ("SET free w NX; EXPIRE free 9 LT", "+OK; :1", "acquire free w 9000"),
        ("SET own v XX; PEXPIRE own 900", "+OK; :1", "expire own 7 900"),
        (
            "SET own w XX; SET own x XX KEEPTTL; GETEX own PX 900",
            "+OK; +OK; x",
            "end own 7; acquire own x 900",
        ),
        ("SETNX free w; DEL free", ":1; :1", ""),
        (
            "PERSIST free; PERSIST own; PERSIST own; PTTL own; PEXPIRE own 900",
            ":0; :1; :0; :-1; :1",
            "expire own 7 900",
        ),
        // The same value, but a new lease with a new token.
        ("DEL own; SET own v NX PX 1000", ":1; +OK", "end own 7; acquire own v 1000"),
    ] {
        assert_eq!(run(line, Context::Queued), (replies.to_owned(), changes.to_owned()), "{line}");
    }
}

#[test]
fn scripts_may_set_without_a_condition_and_wake_nobody() {
    for (line, reply, changes) in [
        ("SET free w PX 1000", "+OK", "acquire free w 1000"),
        ("SET own v PX 1000", "+OK", "expire own 7 1000"),
        ("SETEX own 2 w", "+OK", "end own 7; acquire own w 2000"),
        ("PSETEX free 300 w", "+OK", "acquire free w 300"),
        ("SET taken w PX 1000", TAKEN, ""),
        ("PUBLISH channel gone", ":0", ""),
    ] {
        assert_eq!(run(line, Context::Script), (reply.to_owned(), changes.to_owned()), "{line}");
        let refused = Verb::read(
            &line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect::<Vec<_>>(),
            Context::Alone,
            NAMING,
        );
        assert!(refused.is_err(), "{line} alone");
    }
}

/// Otherwise a client that never held the lock could show its token to a verifier.
#[test]
fn the_token_is_for_who_knows_the_value_of_the_live_lease() {
    for (line, reply) in [
        ("RINGFENCE.TOKEN own v", ":7"),
        ("RINGFENCE.TOKEN own w", "nil"),
        ("RINGFENCE.TOKEN free v", "nil"),
        ("RINGFENCE.TOKEN taken ringfence:held-by-another", "nil"),
        ("RINGFENCE.TOKEN own", "-ERR wrong number of arguments for 'ringfence.token' command"),
        ("PEXPIRE own 900; RINGFENCE.TOKEN own v", ":1; :7"),
        ("DEL own; RINGFENCE.TOKEN own v", ":1; nil"),
    ] {
        assert_eq!(run(line, Context::Queued).0, reply, "{line}");
    }
    let (replies, _) = run("DEL own; SET own v NX PX 900; RINGFENCE.TOKEN own v", Context::Queued);
    assert!(replies.contains("once this request is done"), "{replies}");
}

/// The table then refuses a change if a renewal has moved the deadline that decided it.
#[test]
fn what_was_read_becomes_a_condition() {
    for (line, expected) in [
        ("DELIFEQ own v; EXISTS free taken", "free Free; own Held 7 None; taken Taken"),
        ("PTTL own; PEXPIRE own 9000", "own Held 7 Some(15000)"),
    ] {
        let mut transaction = transaction();
        for command in line.split("; ") {
            let arguments: Vec<Bytes> =
                command.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
            Verb::read(&arguments, Context::Queued, NAMING).unwrap().run(&mut transaction).unwrap();
        }
        let command = transaction.into_command(None, || (LeaseId::random(), Attachment(0))).unwrap();
        let conditions = command.conditions().iter().map(|(key, condition)| match condition {
            Condition::Held { token, until_ms } => format!("{key} Held {token} {until_ms:?}"),
            other => format!("{key} {other:?}"),
        });
        assert_eq!(conditions.collect::<Vec<_>>().join("; "), expected, "{line}");
    }
}

#[test]
fn arguments_are_checked_before_anything_is_done() {
    let long = "x".repeat(1_025);
    let (key, set) = ("k".repeat(513), "SET free w NX");
    for (line, error) in [
        ("SET free w NX", "ERR ringfence: a lock needs a time"),
        ("SET free w PX 1000", "ERR ringfence: SET without NX"),
        ("SET free w NX KEEPTTL", "ERR ringfence: a lock needs a time"),
        ("SET free w NX GET", "ERR ringfence: SET has the options"),
        ("SET free w NX PXAT 1", "ERR ringfence: no wall clock"),
        ("SET free w NX PX", "ERR syntax error"),
        ("SET free w NX XX PX 1", "ERR syntax error"),
        ("SET free w NX PX 1 EX 1", "ERR syntax error"),
        ("SET free w IFEQ", "ERR syntax error"),
        ("SET free w NX FOO 1", "ERR syntax error"),
        ("SET free", "ERR wrong number of arguments for 'set' command"),
        (&format!("{set} PX a"), "ERR value is not an integer or out of range"),
        (&format!("{set} PX 01"), "ERR value is not an integer or out of range"),
        (&format!("{set} PX 9223372036854775808"), "ERR value is not an integer or out of range"),
        (&format!("{set} PX 0"), "ERR invalid expire time in 'set' command"),
        (&format!("{set} EX 9223372036854775807"), "ERR invalid expire time in 'set' command"),
        (&format!("{set} PX 86400001"), "ERR ringfence: a lock lives for at most 24 hours"),
        (&format!("SET free {long} NX PX 1000"), "ERR ringfence: a value has at most 1,024 bytes"),
        (&format!("SET free a IFEQ {long} PX 1000"), "ERR ringfence: a value has at most 1,024 bytes"),
        (&format!("DEL own {key}"), "ERR ringfence: a key has at most 512 bytes"),
        ("EXPIRE own 9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("GETEX own PERSIST", "ERR ringfence: a lock needs a time"),
        ("GETEX own PXAT 1", "ERR ringfence: no wall clock"),
        ("GETEX own PX", "ERR syntax error"),
        ("PEXPIRE own 1.5", "ERR value is not an integer or out of range"),
        ("DELEX own IFNE v", "ERR ringfence: DELEX has the option IFEQ"),
        ("DELEX own FOO v", "ERR syntax error"),
        ("DELEX own IFEQ", "ERR syntax error"),
        ("SETNX free w", "ERR ringfence: a lock needs a time"),
        ("PERSIST own", "ERR ringfence: a lock needs a time"),
        ("TIME", "ERR ringfence: TIME: no wall clock"),
        ("BLPOP a 0", "ERR ringfence: BLPOP: nothing is sent to those who wait"),
        ("HSET a b c", "ERR ringfence: HSET: a lock is a string"),
        ("FOO", "ERR unknown command 'FOO'"),
        ("F\r\n+OK", "ERR unknown command 'F'"),
    ] {
        let (reply, changes) = run(line, Context::Alone);
        assert!(reply.starts_with(&format!("-{error}")), "{line}: {reply}");
        assert!(!reply.contains(['\r', '\n']) && changes.is_empty(), "{line}");
    }
}

#[test]
fn scripts_that_may_change_nothing_read_only() {
    let read = |line: &str| {
        let arguments: Vec<Bytes> =
            line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        Verb::read_only(&arguments, NAMING).map_err(|refused| refused.text().to_owned())
    };
    assert!(read("GET own").is_ok() && read("PTTL own").is_ok());
    for line in ["DEL own", "set free w px 100", "PEXPIRE own 1", "PUBLISH a b"] {
        assert!(read(line).unwrap_err().contains("read-only"), "{line}");
    }
}

/// A script can name a key thousands of times.
#[test]
fn mget_copies_the_value_of_a_key_once() {
    let verb = Verb::read(&["mget", "own", "own"].map(Bytes::from), Context::Script, NAMING).unwrap();
    let Reply::Array(items) = verb.run(&mut transaction()).unwrap() else { panic!("an array") };
    let [Reply::Bulk(one), Reply::Bulk(other)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(one.as_ptr(), other.as_ptr());
}
