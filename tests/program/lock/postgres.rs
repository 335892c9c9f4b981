//! `--postgres`: programs that know nothing of tokens, in a real PostgreSQL.

use ringfence_harness::{PgBouncer, PostgresServer};
use tokio::net::TcpListener;

use super::detached::detach;
use super::*;

/// A cluster, and a server with a guarded table, of which all rows are 0.
pub(super) async fn guarded() -> (Cluster, PostgresServer) {
    let (cluster, server) = (cluster().await, PostgresServer::start().await.unwrap());
    let install = format!(
        "{PROGRAM} guard postgres | psql -qX -v ON_ERROR_STOP=1 --single-transaction -f - -f tables.sql"
    );
    let dir = TempDir::new().unwrap();
    let tables = "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts VALUES (41, 0), (42, 0);
                  SELECT ringfence.protect('accounts', 'accounts/', 'id', by_connection => true)";
    std::fs::write(dir.path().join("tables.sql"), tables).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &install]).current_dir(dir.path());
    run(of(piped(shell), &server.url())).await.with(0);
    (cluster, server)
}

/// With the variables by which libpq finds the server.
fn of(mut command: Command, url: &str) -> Command {
    let address = url.rsplit_once('@').unwrap().1.trim_end_matches("/postgres");
    let (host, port) = address.rsplit_once(':').unwrap();
    let variables = [("PGHOST", host), ("PGPORT", port), ("PGUSER", "postgres"), ("PGDATABASE", "postgres")];
    command.envs(variables).env_remove("PGOPTIONS");
    command
}

/// `lock` with these arguments, for a shell that may call `psql`.
pub(super) fn locked(cluster: &Cluster, server: &PostgresServer, words: &str, script: &str) -> Command {
    of(lock(cluster, words, script), &server.url())
}

/// What `psql` prints.
pub(super) async fn psql(server: &PostgresServer, sql: &str) -> String {
    let mut psql = Command::new("psql");
    psql.args(["-qXAt", "-c", sql]);
    run(of(piped(psql), &server.url())).await.with(0).out
}

const ADD: &str =
    "psql -qXAt -v ON_ERROR_STOP=1 -c 'UPDATE accounts SET balance = balance + 1 WHERE id = 42'";

#[tokio::test]
async fn an_unchanged_program_writes_under_its_lease_and_is_refused_after_it() {
    let (cluster, server) = guarded().await;
    let in_url = format!(
        "env -u PGOPTIONS {}",
        ADD.replace("-qXAt", &format!("-qXAt \"{}?options=$RINGFENCE_PGOPTIONS\"", server.url()))
    );
    let script =
        format!("{ADD} && {in_url} && psql -qXAt -c 'SHOW work_mem' && echo $PGOPTIONS $RINGFENCE_TOKEN");
    let mut command = locked(&cluster, &server, "accounts/42 b --postgres", &script);
    // All that the server says of this is no answer.
    command.env("PGOPTIONS", "-c work_mem=12MB -c client_min_messages=debug5");
    let out = run(command).await.with(0).out;
    let (options, token) = out.trim().rsplit_once(' ').unwrap();
    let claims = format!("-c ringfence.may_claim=accounts%2F42={token},b={token}");
    assert_eq!(options, format!("12MB\n-c work_mem=12MB -c client_min_messages=debug5 {claims}"));
    // By a URL, and of another lease.
    let words = format!("accounts/42 --postgres {}", server.url());
    run(lock(
        &cluster,
        &words,
        &format!("unset PGHOST; PGHOST={} PGUSER=postgres {ADD}", server.address().ip()),
    ))
    .await
    .with(0);
    // The first one wakes up late, without `lock`, which would have killed it.
    for (options, code) in [
        (claims.as_str(), "stale token"),
        ("", "token required"),
        ("-c ringfence.may_claim=b=9", "token required"),
    ] {
        let mut late = Command::new("sh");
        late.args(["-c", ADD]);
        let mut late = of(piped(late), &server.url());
        late.env("PGOPTIONS", options);
        let err = run(late).await.with(1).err;
        assert!(err.contains(code), "{options}: {err}");
    }
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "3\n");
}

#[tokio::test]
async fn a_lock_within_a_lock_and_a_held_lease_keep_the_claims_of_all() {
    let (cluster, server) = guarded().await;
    let both = "psql -qXAt -v ON_ERROR_STOP=1 -c 'UPDATE accounts SET balance = balance + 1'";
    let inner = format!("{PROGRAM} lock accounts/42 --postgres -- {both}");
    run(locked(&cluster, &server, "accounts/41 --postgres", &inner)).await.with(0);
    let grant = run(detach(&cluster, "accounts/41 accounts/42 --ttl 10s -o json")).await.with(0).out;
    let grant: serde_json::Value = serde_json::from_str(&grant).unwrap();
    let mut held = ringfence(&cluster, &format!("hold {} --postgres", grant["lease_id"].as_str().unwrap()));
    held.args(["--", "sh", "-c", both]);
    run(of(held, &server.url())).await.with(0);
    assert_eq!(psql(&server, "SELECT sum(balance) FROM accounts").await, "4\n");
}

/// Once, the keys in the URL were touched instead, and the program started.
#[tokio::test]
async fn a_url_with_other_claims_than_the_leases_starts_nothing() {
    let (cluster, server) = guarded().await;
    let words =
        format!("accounts/42 --postgres {}?options=-c%20ringfence.may_claim%3Dother%3D1", server.url());
    let refused = run(locked(&cluster, &server, &words, "echo started")).await.with(125);
    assert!(refused.out.is_empty() && refused.err.contains("another ringfence.may_claim"), "{refused:?}");
}

/// Opens a transaction as an older holder, which ends when its input does.
async fn older(server: &PostgresServer) -> Child {
    let mut psql = Command::new("psql");
    psql.args(["-qXAt"]).env("PGAPPNAME", "the older\u{1b}one");
    let mut child = of(piped(psql), &server.url()).stdin(Stdio::piped()).spawn().unwrap();
    let claim = b"BEGIN; SELECT 1 FROM ringfence.claim('accounts/42', 1); UPDATE accounts SET balance = 100 WHERE id = 42;\n";
    tokio::io::AsyncWriteExt::write_all(child.stdin.as_mut().unwrap(), claim).await.unwrap();
    let is_open = async || {
        let open = psql_count(server, "state = 'idle in transaction'").await;
        (open == "1\n").then_some(())
    };
    until(SOON, "the older holder has written", is_open).await.unwrap();
    child
}

async fn psql_count(server: &PostgresServer, of: &str) -> String {
    psql(server, &format!("SELECT count(*) FROM pg_stat_activity WHERE {of}")).await
}

/// Waits until this number of touches wait for the older holder.
async fn touches(server: &PostgresServer, number: u8) {
    let wait = async || {
        let waiting = psql_count(server, "wait_event_type = 'Lock' AND query LIKE 'CALL%'").await;
        (waiting == format!("{number}\n")).then_some(())
    };
    until(SOON, "touches wait", wait).await.unwrap();
}

#[tokio::test]
async fn what_an_older_holder_has_open_is_waited_for_and_named_and_no_program_starts_meanwhile() {
    let (cluster, server) = guarded().await;
    let mut older = older(&server).await;
    let locks = |key: &str| {
        locked(&cluster, &server, &format!("accounts/42 {key} --ttl 4s --postgres"), "echo started")
    };
    // It is renewed meanwhile.
    let mut child = locks("a").spawn().unwrap();
    touches(&server, 1).await;
    let mut err = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut named = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut err, &mut named).await.unwrap();
    let waits = "ringfence: the touch waits in PostgreSQL for backend ";
    assert!(
        named.starts_with(waits) && named.contains("of postgres, the older") && !named.contains('\u{1b}'),
        "{named}"
    );
    // A signal ends it, and the server learns that nobody waits.
    signal(&child, Signal::TERM);
    let end = end_of(child).await;
    assert_eq!(end.with(143).out, "");
    touches(&server, 0).await;
    is_free(&cluster, "a").await;
    // So does the loss of the lease.
    let child = locks("b").spawn().unwrap();
    touches(&server, 1).await;
    let token = view(&cluster, "b").await.holders[0].token;
    cluster.node(2).client().patient().revoke(&key("b"), token).await.done();
    let end = end_of(child).await.with(76);
    assert!(end.out.is_empty() && end.err.contains("the command was not started"), "{}", end.err);
    touches(&server, 0).await;
    // What it has written is there before the program reads.
    let child = locked(&cluster, &server, "accounts/42 --postgres", ADD).spawn().unwrap();
    touches(&server, 1).await;
    tokio::io::AsyncWriteExt::write_all(older.stdin.as_mut().unwrap(), b"COMMIT;\n").await.unwrap();
    end_of(child).await.with(0);
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "101\n");
}

#[tokio::test]
async fn without_a_touch_nothing_starts_and_the_error_says_why() {
    let (cluster, server) = guarded().await;
    let fails = async |command: Command, status: i32, why: &str| {
        let end = run(command).await.with(status);
        assert!(end.err.contains(why) && end.out.is_empty(), "{why}: {}{}", end.err, end.out);
        is_free(&cluster, "a").await;
    };
    let of_url = |url: &str| lock(&cluster, &format!("a --postgres {url}"), "echo started");
    fails(of_url("postgresql://postgres@127.0.0.1:1/postgres"), 125, "Connection refused").await;
    fails(
        of_url(&server.url().replace("5432/postgres", "5432/none")),
        125,
        "database \"none\" does not exist",
    )
    .await;
    fails(of_url(&format!("{}?sslmode=require", server.url())), 125, "server does not support SSL").await;
    fails(of_url("accounts/42"), 125, "a key stands before --postgres").await;
    fails(lock(&cluster, "a --shared --postgres", "echo started"), 125, "--shared").await;
    psql(&server, "SELECT ringfence.touch('a', 9007199254740991)").await;
    fails(of_url(&server.url()), 125, "stale token: of a").await;
    let mut nowhere = of_url(&server.url());
    nowhere.env("PATH", "");
    fails(nowhere, 125, "there is no psql in the PATH").await;
    psql(&server, "DROP SCHEMA ringfence CASCADE").await;
    fails(of_url(&server.url()), 125, "schema \"ringfence\" does not exist").await;
}

/// It takes connections, and neither answers nor closes them.
#[tokio::test]
#[ignore = "slow"]
async fn a_database_that_is_silent_is_waited_for_no_longer_than_said() {
    let cluster = cluster().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgresql://postgres@{}/postgres", listener.local_addr().unwrap());
    let end = run(lock(&cluster, &format!("a --postgres {url}"), "echo started")).await.with(125);
    assert!(end.err.contains("has not answered for 15 s") && end.out.is_empty(), "{}", end.err);
}

/// In either way to configure it, the setting does not arrive.
#[tokio::test]
async fn a_pooler_between_fails_closed() {
    let (cluster, server) = guarded().await;
    for (config, why) in [
        ("", "unsupported startup parameter: options"),
        ("ignore_startup_parameters = options\n", "this connection has no setting ringfence.may_claim"),
        (
            "ignore_startup_parameters = options\npool_mode = session\n",
            "this connection has no setting ringfence.may_claim",
        ),
    ] {
        let bouncer = PgBouncer::start_with(&server, 2, config).await.unwrap();
        let end =
            run(of(lock(&cluster, "accounts/42 --postgres", "echo started"), &bouncer.url())).await.with(125);
        assert!(end.err.contains(why) && end.out.is_empty(), "{config}: {}", end.err);
        let mut writes = of(lock(&cluster, "accounts/42", ADD), &bouncer.url());
        writes
            .env("PGOPTIONS", if config.is_empty() { "" } else { "-c ringfence.may_claim=accounts%2F42=99" });
        let err = run(writes).await.with(1).err;
        assert!(err.contains("token required"), "{config}: {err}");
    }
}

/// Reads 0, and adds 1 to what it has read, once a line is in the pipe. `lock` and its supervisor are stopped meanwhile, and cannot kill it.
/// Returns the balance when it has tried, and what it was told; in between, a next holder has added 10.
async fn paused_between_read_and_write(option: &str) -> (String, String) {
    let (cluster, server) = guarded().await;
    if option.is_empty() {
        psql(&server, "SELECT ringfence.protect('accounts', 'x'); ALTER TABLE accounts DISABLE TRIGGER USER")
            .await;
    }
    let (dir, read) = file_of("read");
    let [pipe, tried] = ["pipe", "tried"].map(|name| dir.path().join(name));
    std::fs::write(&pipe, "").unwrap();
    let program = format!(
        "read=$(psql -qXAt -c 'SELECT balance FROM accounts WHERE id = 42'); echo $PPID >{read}
         until test -s {pipe}; do sleep 0.05; done
         psql -qXAt -c \"UPDATE accounts SET balance = $read + 1 WHERE id = 42\" >{tried}.out 2>&1; echo >>{tried}.out; mv {tried}.out {tried}",
        read = read.display(),
        pipe = pipe.display(),
        tried = tried.display(),
    );
    let paused = format!("accounts/42 --ttl 2s{option}");
    // On a busy machine the lease may be lost before the program has read.
    let (child, supervisor) = loop {
        let _ = std::fs::remove_file(&read);
        let mut child = locked(&cluster, &server, &paused, &program).spawn().unwrap();
        tokio::select! {
            pids = pids_in(&read) => break (child, pids[0]),
            _ = child.wait() => {}
        }
    };
    signal(&child, Signal::STOP);
    kill_process(supervisor, Signal::STOP).unwrap();
    let next = ADD.replace("+ 1", "+ 10");
    run(locked(&cluster, &server, &format!("accounts/42 --ttl 30s{option}"), &next)).await.with(0);
    std::fs::write(&pipe, "\n").unwrap();
    let told = text_of(&tried).await;
    kill_process(supervisor, Signal::CONT).unwrap();
    signal(&child, Signal::CONT);
    end_of(child).await.with(76);
    (psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, told)
}

/// The same program, where it loses a write today and where it loses none.
#[tokio::test]
async fn an_unchanged_program_that_is_paused_between_read_and_write_loses_no_write_of_the_next_holder() {
    let (balance, told) = paused_between_read_and_write("").await;
    assert_eq!(
        (balance.as_str(), told.trim()),
        ("1\n", ""),
        "without a guard, the write of the next holder is lost"
    );
    let (balance, told) = paused_between_read_and_write(" --postgres").await;
    assert_eq!(balance, "10\n");
    assert!(told.contains("stale token"), "{told}");
}
