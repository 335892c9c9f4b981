//! Scripts like those of lock libraries.

use crate::client::{Client, array};
use crate::node::Node;

/// Sets the keys in KEYS, if all are free.
const ACQUIRE: &str = "for _, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end
    for _, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end
    return #KEYS";
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
/// Adds to the time that is left.
const EXTEND: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
    local left = redis.call('pttl', KEYS[1])
    if left < 0 then return 0 end
    redis.call('pexpire', KEYS[1], left + ARGV[2])
    return 1";
/// Releases a key, and wakes waiters with a push and a message.
const WAKE: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 1 end
    redis.call('del', KEYS[2])
    redis.call('lpush', KEYS[2], 1)
    redis.call('pexpire', KEYS[2], ARGV[2])
    redis.call('publish', 'gone', 'x')
    redis.call('del', KEYS[1])
    return 0";

async fn eval(client: &mut Client, text: &str, count: usize, rest: &[&str]) -> String {
    client.command(&[&["EVAL", text, &count.to_string()], rest].concat()).await
}

#[tokio::test]
async fn scripts_acquire_extend_and_release() {
    let node = Node::start().await;
    let mut client = node.client().await;
    assert_eq!(eval(&mut client, ACQUIRE, 3, &["a", "b", "c", "v", "60000"]).await, ":3");
    assert_eq!(eval(&mut client, ACQUIRE, 2, &["d", "b", "w", "60000"]).await, ":0");
    assert_eq!(client.call("EXISTS a b c d").await, ":3");
    assert_eq!(eval(&mut client, EXTEND, 1, &["a", "v", "60000"]).await, ":1");
    let left: i64 = client.call("PTTL a").await[1..].parse().unwrap();
    assert!((60_001..=120_000).contains(&left), "{left}");
    assert_eq!(eval(&mut client, EXTEND, 1, &["a", "w", "60000"]).await, ":0");
    assert_eq!(eval(&mut client, RELEASE, 1, &["a", "w"]).await, ":0");
    assert_eq!(eval(&mut client, RELEASE, 1, &["a", "v"]).await, ":1");
    assert_eq!(eval(&mut client, WAKE, 2, &["b", "signal", "v", "1000"]).await, ":0");
    assert_eq!(eval(&mut client, WAKE, 2, &["b", "signal", "v", "1000"]).await, ":1");
    assert_eq!(client.call("EXISTS a b c signal").await, ":1");
}

/// Long scripts run in turns, and others go on between the turns.
#[tokio::test]
async fn of_long_scripts_that_want_a_free_key_one_gets_it() {
    let node = Node::start().await;
    let script = "local is_free = not redis.call('get', KEYS[1]) \
                  for i = 1, 10000 do local x = i end \
                  return is_free and redis.call('set', KEYS[1], ARGV[1], 'PX', 60000) or 'taken'";
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = node.client().await;
        client.send(&array(&["EVAL", script, "1", "a", &number.to_string()])).await;
        clients.push(client);
    }
    let mut replies = Vec::new();
    for client in &mut clients {
        replies.push(client.receive().await);
    }
    let winner = replies.iter().position(|reply| reply == "+OK").unwrap();
    assert_eq!(replies.iter().filter(|reply| *reply == "taken").count(), 7, "{replies:?}");
    assert_eq!(clients[0].call("GET a").await, winner.to_string());
}

/// A text that cannot be compiled is never remembered. Once, only its bytes were counted.
#[tokio::test]
async fn compiling_counts_by_the_length_of_the_text() {
    let rules =
        "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\nlimits = { requests-per-s = 20 }";
    let node = Node::start_with(Some(rules)).await;
    let mut client = node.client().await;
    let wrong = "local x = 1 ".repeat(5_000) + "!";
    let refused = eval(&mut client, &wrong, 0, &[]).await;
    assert!(refused.contains("Error compiling script"), "{refused}");
    let late = client.call("PING").await;
    assert!(late.contains("requests per second"), "{late}");
}

/// Its steps are counted once they ran. Once, they used up what its own change needed then.
#[tokio::test]
async fn a_script_of_many_steps_makes_its_change() {
    let rules =
        "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\nlimits = { requests-per-s = 2 }";
    let node = Node::start_with(Some(rules)).await;
    let mut client = node.client().await;
    let work = "local n = 0 for i = 1, 9000 do n = n + i end ";
    let change = "for _, key in ipairs(KEYS) do redis.call('SET', key, n, 'PX', 60000) end return n";
    assert_eq!(eval(&mut client, &(work.to_owned() + change), 2, &["a", "b"]).await, ":40504500");
    let late = client.call("PING").await;
    assert!(late.contains("requests per second"), "{late}");
}

#[tokio::test]
async fn scripts_are_known_by_their_digests() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let unknown = "-NOSCRIPT No matching script. Please use EVAL.";
    let digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(client.call(&format!("EVALSHA {digest} 0")).await, unknown);
    assert_eq!(client.call("EVALSHA short 0").await, unknown);
    assert_eq!(eval(&mut client, "return 1", 0, &[]).await, ":1");
    assert_eq!(client.call(&format!("EVALSHA {} 0", digest.to_uppercase())).await, ":1");
    assert_eq!(client.call(&format!("SCRIPT EXISTS {digest} short")).await, "[:1, :0]");
    assert_eq!(client.call("SCRIPT FLUSH").await, "+OK");
    assert_eq!(client.call(&format!("EVALSHA {digest} 0")).await, unknown);
    assert_eq!(client.command(&["SCRIPT", "LOAD", "return 1"]).await, digest);
    assert_eq!(client.call(&format!("EVALSHA_RO {digest} 0")).await, ":1");
    let refused = client.command(&["SCRIPT", "LOAD", "return cjson.encode({})"]).await;
    assert!(refused.starts_with("-ERR Error compiling script") && refused.contains("cjson"), "{refused}");
}

#[tokio::test]
async fn a_script_that_fails_has_done_nothing() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("SET own v NX PX 60000").await;
    let effect = "redis.call('set', KEYS[1], 'w', 'px', 60000) redis.call('del', KEYS[2]) ";
    for (wrong, why) in [
        ("redis.call('foo')", "unknown command"),
        ("redis.call('get', 'other')", "ringfence: a script may use the keys in its KEYS"),
        ("redis.call('set', KEYS[1], 'w')", "a lock needs a time"),
        ("redis.call('lpush', KEYS[1], 1)", "there are no lists"),
        ("redis.call('time')", "no wall clock"),
        ("redis.call('multi')", "unknown command"),
        ("error('on purpose')", "on purpose"),
        ("return redis.error_reply('MINE on purpose')", "MINE on purpose"),
        ("\nwhile true do end", "user_script:2: the scripts of this request take too many steps"),
        ("local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1000) end", "too m"),
        ("return ('x'):rep(70000)", "64 KiB"),
    ] {
        let reply = eval(&mut client, &format!("{effect}{wrong}"), 2, &["free", "own"]).await;
        assert!(reply.starts_with('-') && reply.contains(why), "{wrong}: {reply}");
        assert_eq!(client.call("EXISTS free own").await, ":1", "{wrong}");
        assert_eq!(client.call("GET own").await, "v", "{wrong}");
    }
}

/// A list would be a lock that everybody gets.
#[tokio::test]
async fn a_script_pushes_to_what_it_has_deleted_and_then_only_sets_its_time() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let push = "redis.call('rpush', KEYS[1], 'x')";
    let del = "redis.call('del', KEYS[1])";
    for (script, reply) in [
        (format!("return {push}"), None),
        (format!("{del} return {push}"), Some(":1")),
        (format!("{del} {push} return redis.call('pexpire', KEYS[1], 1000)"), Some(":1")),
        (format!("{del} {push} return {push}"), None),
        (format!("{del} {push} return redis.call('exists', KEYS[1])"), None),
        (format!("{del} {push} return redis.call('set', KEYS[1], 'v', 'nx', 'px', 60000)"), None),
        (format!("{del} redis.call('set', KEYS[1], 'v', 'nx', 'px', 60000) return {push}"), None),
        (format!("for i = 1, 1000 do {del} end return {push}"), Some(":1")),
    ] {
        let got = eval(&mut client, &script, 1, &["a"]).await;
        match reply {
            Some(reply) => assert_eq!(got, reply, "{script}"),
            None => assert!(got.starts_with("-ERR ringfence: there are no lists"), "{script}: {got}"),
        }
    }
    assert_eq!(client.call("EXISTS a").await, ":0");
}

/// Redis might have done it, and then the script goes on as if it had.
#[tokio::test]
async fn a_script_cannot_catch_a_refusal() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("SET own v NX PX 60000").await;
    for (call, reply) in [
        ("'set', KEYS[1], 'w', 'px', '99999999'", "-ERR ringfence: a lock lives for at most 24 hours"),
        ("'hinc' .. 'rby', KEYS[1], 'w', 1", "-ERR ringfence: HINCRBY: a lock is a string"),
        ("'fo' .. 'o'", "-ERR unknown command 'foo'"),
        ("'select', 1", "-ERR ringfence: a script uses the database of its connection"),
    ] {
        let text = format!("redis.call('del', KEYS[1]) local failed = redis.pcall({call}) return 1");
        let got = eval(&mut client, &text, 1, &["own"]).await;
        assert!(got.starts_with(reply), "{call}: {got}");
        assert_eq!(client.call("GET own").await, "v", "{call}");
    }
    client.call("SELECT 1").await;
    let text = "redis.call('select', 1) return redis.call('exists', KEYS[1])";
    assert_eq!(eval(&mut client, text, 1, &["own"]).await, ":0");
}

#[tokio::test]
async fn calls_of_scripts_are_checked_before_they_run() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (arguments, reply) in [
        (&["EVAL", "return 1", "x"][..], "-ERR value is not an integer or out of range"),
        (&["EVAL", "return 1", "-1"], "-ERR Number of keys can't be negative"),
        (&["EVAL", "return 1", "1"], "-ERR Number of keys can't be greater than number of args"),
        (&["EVAL", "return 1", "1", ""], "-ERR ringfence: a key must not be empty"),
        (&["EVAL", "return 1"], "-ERR wrong number of arguments for 'eval' command"),
        (&["EVAL_RO", "return redis.call('del', KEYS[1])", "1", "a"], "-ERR Write commands are not allowed"),
        (&["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "a"], "nil"),
    ] {
        let got = client.command(arguments).await;
        assert!(got.starts_with(reply), "{arguments:?}: {got}");
    }
    let names: Vec<String> = (0..33).map(|number| format!("key/{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(
        eval(&mut client, "return 1", 33, &names)
            .await
            .starts_with("-ERR ringfence: a request has at most 32")
    );
    assert_eq!(eval(&mut client, ACQUIRE, 32, &[&names[..32], &["v", "60000"]].concat()).await, ":32");
}

/// Each script has read that the lock is free. Only the first one may take it.
#[tokio::test(flavor = "multi_thread")]
async fn of_scripts_that_run_at_once_one_gets_the_lock() {
    let node = Node::start().await;
    for round in 0..20 {
        let mut clients = Vec::new();
        for number in 0..8 {
            let mut client = node.client().await;
            let (lock, value) = (format!("lock/{round}"), format!("value/{number}"));
            clients.push(tokio::spawn(async move {
                client.send(&array(&["EVAL", ACQUIRE, "2", &lock, "common", &value, "60000"])).await;
                client.receive().await
            }));
        }
        let mut won = 0;
        for client in clients {
            won += i32::from(client.await.unwrap() == ":2");
        }
        assert_eq!(won, 1, "round {round}");
        node.client().await.call("DEL common").await;
    }
}

/// Without a reply, the client would take each later reply for that of an earlier request.
#[tokio::test]
async fn an_error_of_any_length_is_a_reply() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for text in ["return redis.error_reply(string.rep('x', 70000))", "error(string.rep('\\255', 70000))"] {
        let reply = client.command(&["EVAL", text, "0"]).await;
        assert!(reply.starts_with('-') && reply.len() < 2_000, "{} bytes: {reply:.99}", reply.len());
        assert_eq!(client.call("PING").await, "+PONG");
    }
}

/// A library's release was once refused only when the holder sent it. So the lock stayed until its time was over.
#[tokio::test]
async fn a_script_that_calls_what_is_refused_is_refused_when_it_is_loaded() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (call, named) in [
        ("redis.call('INCR', KEYS[1])", "INCR: a lock needs a time"),
        ("redis.pcall('time')", "TIME: no wall clock"),
        ("redis.call'TIME'", "TIME: no wall clock"),
        ("local x = redis.call( 'hget' , KEYS[1], 'a')", "HGET: a lock is a string"),
        ("redis.call('nothing')", "unknown command 'nothing'"),
    ] {
        let script =
            format!("if redis.call('get', KEYS[1]) == ARGV[1] then\n {call} return 1 else return 0 end");
        let reply = client.command(&["SCRIPT", "LOAD", &script]).await;
        let expected = "-ERR Error compiling script (new function): user_script:2: ";
        assert!(reply.starts_with(expected) && reply.contains(named), "{reply}");
        assert!(reply.contains("(script ") && reply.len() > 60, "{reply}");
        let reply = eval(&mut client, &script, 1, &["free", "v"]).await;
        assert!(reply.contains(named), "{reply}");
    }
    // A name that is made at run time is not known yet, nor is one that no command has.
    for script in [
        "return redis.call('ge' .. 't', KEYS[1])",
        "local f = redis.call return f('get', KEYS[1])",
        "local t = {call = tostring} return t.call('time')",
        "return redis.call(ARGV[1] or 'time', KEYS[1])",
        "return redis.call('get', KEYS[1])",
    ] {
        assert!(!eval(&mut client, script, 1, &["free", "get"]).await.starts_with('-'), "{script}");
    }
}

/// Redis names the script and the line.
#[tokio::test]
async fn a_refusal_of_a_run_names_the_command_the_line_and_the_script() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let script = "local name = 'inc' .. 'r'\nreturn redis.call(name, KEYS[1])";
    let digest = client.command(&["SCRIPT", "LOAD", script]).await;
    let place = format!("(INCR, user_script:2, script {digest})");
    let reply = eval(&mut client, script, 1, &["a"]).await;
    assert!(
        reply.starts_with("-ERR ringfence: INCR: a lock needs a time") && reply.ends_with(&place),
        "{reply}"
    );
    client.call("MULTI").await;
    client.command(&["EVALSHA", &digest, "1", "a"]).await;
    let reply = client.call("EXEC").await;
    assert!(reply.starts_with("-EXECABORT") && reply.ends_with(&place), "{reply}");
    let other = eval(&mut client, "return redis.call('get', ARGV[1])", 1, &["a", "b"]).await;
    assert!(other.contains("b is not one of them (GET, user_script:1, script "), "{other}");
}

/// This is how libraries acquire: SETNX first, then a time.
#[tokio::test]
async fn a_lock_needs_a_time_when_its_transaction_ends_and_not_before() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let acquire = "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then return redis.call('pexpire', KEYS[1], 60000) end return 0";
    assert_eq!(eval(&mut client, acquire, 1, &["a", "v"]).await, ":1");
    assert_eq!(eval(&mut client, acquire, 1, &["a", "w"]).await, ":0");
    for (first, second, replies) in [
        ("SETNX b v", "PEXPIRE b 60000", "[:1, :1]"),
        ("SET c v NX", "EXPIRE c 60", "[+OK, :1]"),
        ("SETNX b w", "PTTL nothing", "[:0, :-2]"),
    ] {
        client.call("MULTI").await;
        assert_eq!(client.call(first).await, "+QUEUED");
        assert_eq!(client.call(second).await, "+QUEUED");
        assert_eq!(client.call("EXEC").await, replies);
    }
    let left: i64 = client.call("PTTL b").await[1..].parse().unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    // A branch that is not taken does not count.
    let renew = "if ARGV[2] ~= '-1' then return redis.call('expire', KEYS[1], ARGV[2]) else return redis.call('persist', KEYS[1]) end";
    assert_eq!(eval(&mut client, renew, 1, &["b", "v", "60"]).await, ":1");
    assert!(
        eval(&mut client, renew, 1, &["b", "v", "-1"])
            .await
            .starts_with("-ERR ringfence: a lock needs a time")
    );
    // Without a time, nothing of the transaction is done.
    client.call("MULTI").await;
    client.call("DEL a").await;
    client.call("SETNX d v").await;
    let reply = client.call("EXEC").await;
    assert!(
        reply.starts_with("-ERR ringfence: a lock needs a time") && reply.contains("d is left without"),
        "{reply}"
    );
    let reply = eval(&mut client, "return redis.call('set', KEYS[1], 'v', 'nx')", 1, &["d"]).await;
    assert!(reply.starts_with("-ERR ringfence: a lock needs a time"), "{reply}");
    for line in ["SETNX d v", "SET d v NX", "SET d v NX KEEPTTL"] {
        assert!(client.call(line).await.starts_with("-ERR ringfence: a lock needs a time"), "{line}");
    }
    assert_eq!(client.call("EXISTS a d").await, ":1");
}
