//! `--postgres-proxy`: programs that take no options for their connections.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use ringfence_harness::PostgresServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::postgres::{guarded, locked, psql};
use super::*;

/// A port where nothing listens.
fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `psql` through the proxy: it reads no variable.
fn through(port: u16, options: &str, sql: &str) -> String {
    format!(
        "env -u PGOPTIONS psql -qXAt -v ON_ERROR_STOP=1 -d 'postgres://postgres@127.0.0.1:{port}/postgres{options}' -c '{sql}'"
    )
}

const ADD: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 42";

/// A lock whose program is `script`, with a proxy at `port`.
fn proxied(cluster: &Cluster, server: &PostgresServer, port: u16, script: &str) -> Command {
    let words = format!("accounts/42 --postgres {} --postgres-proxy {port}", server.url());
    locked(cluster, server, &words, script)
}

#[tokio::test]
async fn a_program_without_options_writes_through_the_proxy_and_all_bytes_pass() {
    let (cluster, server) = guarded().await;
    let port = free();
    let more = "?options=-c%20work_mem%3D12MB&application_name=mine";
    let script = [
        through(port, "", ADD),
        through(port, more, ADD),
        through(port, more, "SELECT current_setting($$work_mem$$), current_setting($$application_name$$)"),
        // Both directions, and far more than any buffer has.
        through(port, "", "SELECT repeat($$x$$, 30000000)") + " | wc -c",
        "seq 1 300000 | ".to_owned()
            + &through(port, "", "CREATE TEMP TABLE t (n int); COPY t FROM STDIN; SELECT sum(n) FROM t"),
        // TLS and GSSAPI are declined, and a program that insists learns it.
        through(port, "?sslmode=require", ADD) + " 2>&1",
    ];
    let out = run(proxied(&cluster, &server, port, &script.join("\n"))).await.with(2).out;
    let (before, refused) = out.split_at(out.find("psql:").expect(&out));
    assert_eq!(before, "12MB|mine\n30000001\n45000150000\n");
    assert!(refused.contains("server does not support SSL"), "{refused}");
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "2\n");
    // It has ended with the lease.
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

/// A cancel is a connection of its own, with another first message.
#[tokio::test]
async fn a_statement_is_cancelled_through_the_proxy() {
    let (cluster, server) = guarded().await;
    let port = free();
    let script = format!(
        "({}) 2>&1 & psql=$!; sleep 1000 & wait $psql; kill $!",
        through(port, "", "SELECT pg_sleep(1000)").replace("env ", "exec env ")
    );
    let child = proxied(&cluster, &server, port, &script).spawn().unwrap();
    let look = async || {
        let pids =
            psql(&server, "SELECT client_port FROM pg_stat_activity WHERE query ~ $$^SELECT pg_sleep$$")
                .await;
        (!pids.is_empty()).then_some(())
    };
    until(SOON, "it sleeps", look).await.unwrap();
    let asleep = std::process::Command::new("pgrep")
        .args(["-f", &format!("127.0.0.1:{port}/postgres -c SELECT pg_sleep")])
        .output()
        .unwrap();
    let asleep = String::from_utf8(asleep.stdout).unwrap();
    let pid = Pid::from_raw(asleep.trim().parse().expect(&asleep)).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let end = end_of(child).await;
    assert!(end.out.contains("canceling statement due to user request"), "{end:?}");
}

#[tokio::test]
async fn connections_end_when_the_lease_is_lost_and_an_open_transaction_is_undone() {
    let (cluster, server) = guarded().await;
    let port = free();
    let (_dir, file) = file_of("open");
    let script = format!(
        "trap '' TERM; (echo 'BEGIN; {ADD};'; echo '\\! echo >{}'; exec sleep 1000) | {}",
        file.display(),
        through(port, "", "").replace(" -c ''", "")
    );
    let child = proxied(&cluster, &server, port, &script).spawn().unwrap();
    text_of(&file).await;
    run(ringfence(
        &cluster,
        &format!("revoke accounts/42 {}", view(&cluster, "accounts/42").await.holders[0].token),
    ))
    .await
    .with(0);
    end_of(child).await.with(76);
    let open = async || {
        let open =
            psql(&server, "SELECT count(*) FROM pg_stat_activity WHERE state = $$idle in transaction$$")
                .await;
        (open == "0\n").then_some(())
    };
    until(SOON, "no transaction is open", open).await.unwrap();
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "0\n");
}

/// Who says nothing, or what no program says, delays and breaks nothing.
#[tokio::test]
async fn what_is_no_first_message_is_refused_and_strangers_do_not_hinder_a_program() {
    let (cluster, server) = guarded().await;
    let port = free();
    let (_dir, file) = file_of("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done; {}", file.display(), through(port, "", ADD));
    let child = proxied(&cluster, &server, port, &script).spawn().unwrap();
    let connect = async || TcpStream::connect(("127.0.0.1", port)).await.ok();
    let mut silent = vec![until(SOON, "it listens", connect).await.unwrap()];
    for _ in 0..50 {
        silent.push(connect().await.unwrap());
    }
    let start = |parameters: &[u8]| {
        let length = u32::try_from(parameters.len() + 8).unwrap();
        [&length.to_be_bytes(), &196_608_u32.to_be_bytes(), parameters].concat()
    };
    let ssl = 80_877_103_u32.to_be_bytes();
    for (sent, why) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "none of PostgreSQL's"),
        (vec![0; 8], "none of PostgreSQL's"),
        (vec![0xff; 8], "none of PostgreSQL's"),
        ([[0, 0, 0, 8], ssl].concat().repeat(9), "again and again"),
        (start(b""), "no end"),
        (start(b"user\0"), "no value"),
        (start(b"user\0me"), "no end"),
        (start(b"options\0\xff\0\0"), "options"),
        (start(b"Ringfence.may_claim\0a=1\0\0"), "belong into its options"),
        (start(&[b"user\0".as_slice(), &[b'x'; 9_960], b"\0\0"].concat()), "more than 10000 bytes"),
    ] {
        let mut stranger = connect().await.unwrap();
        stranger.write_all(&sent).await.unwrap();
        let mut told = Vec::new();
        let _ = stranger.read_to_end(&mut told).await;
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains(why) && told.contains("FATAL"), "{why}: {told:?}");
    }
    std::fs::write(&file, "").unwrap();
    end_of(child).await.with(0);
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "1\n");
}

/// Everybody on this machine reaches the port.
#[tokio::test]
async fn other_users_are_refused() {
    if !is_root() {
        return;
    }
    let (cluster, server) = guarded().await;
    let port = free();
    let as_nobody = format!(
        "setpriv --reuid 65534 --clear-groups {} 2>&1; {}",
        through(port, "", ADD),
        through(port, "", ADD)
    );
    let out = run(proxied(&cluster, &server, port, &as_nobody)).await.with(0).out;
    assert!(out.contains("serves processes of the user alone"), "{out}");
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "1\n");
}

/// As another user, writes and hangs up at once. And again, by a reset while all places are taken: then this user connects from the same port.
const HANGS_UP: &str = r"
import os, socket, struct, sys
port = int(sys.argv[1])
start = b'user\0postgres\0database\0postgres\0\0'
start = struct.pack('>II', len(start) + 8, 196608) + start
query = b'UPDATE accounts SET balance = balance + 1000 WHERE id = 42\0'
query = b'Q' + struct.pack('>I', len(query) + 4) + query

def connected(own=0):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.bind(('127.0.0.1', own))
    connection.connect(('127.0.0.1', port))
    return connection

def as_nobody(work):
    if os.fork() == 0:
        os.setuid(65534)
        work()
        os._exit(0)
    assert os.wait()[1] == 0

def hangs_up():
    for _ in range(50):
        connected().sendall(start + query)

def resets():
    connection = connected(own)
    connection.sendall(start + query)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.close()

as_nobody(hangs_up)
with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    own = free.getsockname()[1]
places = [connected() for _ in range(201)]
as_nobody(resets)
later = connected(own)
for place in places:
    place.close()
# They are served in their order.
last = connected()
last.sendall(start)
assert last.recv(1) == b'R'
print('hung up')
";

/// The kernel takes a socket for root's that its owner has closed. One that was reset has no row in its table: what is found there is a later
/// connection.
#[tokio::test]
async fn other_users_write_nothing_however_soon_they_hang_up() {
    if !is_root() {
        return;
    }
    let (cluster, server) = guarded().await;
    let port = free();
    let (_dir, file) = file_of("hangs-up.py");
    std::fs::write(&file, HANGS_UP).unwrap();
    let script = format!("python3 {} {port} && {}", file.display(), through(port, "", ADD));
    run(proxied(&cluster, &server, port, &script)).await.says(0, "hung up\n");
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "1\n");
}

#[tokio::test]
async fn a_proxy_that_cannot_be_is_named_and_nothing_starts() {
    let (cluster, server) = guarded().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port();
    let err = run(proxied(&cluster, &server, taken, "echo started")).await.says(125, "");
    assert!(err.contains("--postgres-proxy") && err.contains(&taken.to_string()), "{err}");
    is_free(&cluster, "accounts/42").await;
    for words in
        ["a --postgres --postgres-proxy 0", "a --postgres --postgres-proxy 65536", "a --postgres-proxy 5433"]
    {
        let err = run(lock(&cluster, words, "echo started")).await.says(125, "");
        assert!(err.contains("--postgres"), "{words}: {err}");
    }
}

/// Lets the server take passwords, by TLS alone, of all users but its own. Returns the file of the authority that has signed its certificate.
async fn encrypt(server: &PostgresServer, dir: &Path) -> PathBuf {
    let host = server.address().ip();
    let [hba, cert, key] = ["hba", "node-1.pem", "node-1.key"].map(|name| dir.join(name));
    let make = format!("{PROGRAM} cert authorities && {PROGRAM} cert node --id 1 --hosts {host} && ls");
    let mut shell = Command::new("sh");
    shell.args(["-c", &make]).current_dir(dir);
    let files = run(piped(shell)).await.with(0).out;
    std::fs::write(&hba, "host all postgres all trust\nhostssl all all all scram-sha-256\n").unwrap();
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect(&files);
    if is_root() {
        chown(&key, Some(65_534), Some(65_534)).unwrap();
    }
    for (name, value) in [
        ("ssl_cert_file", cert.as_path()),
        ("ssl_key_file", &key),
        ("ssl", Path::new("on")),
        ("hba_file", &hba),
    ] {
        psql(server, &format!("ALTER SYSTEM SET {name} = '{}'", value.display())).await;
    }
    server.restart().await.unwrap();
    dir.join("authority.pem")
}

#[tokio::test]
async fn the_proxy_speaks_tls_to_the_server_where_that_is_verified_and_passwords_pass() {
    let (cluster, server) = guarded().await;
    let dir = TempDir::new().unwrap();
    let authority = encrypt(&server, dir.path()).await;
    psql(&server, "CREATE ROLE app LOGIN PASSWORD $$secret$$").await;
    psql(&server, "GRANT USAGE ON SCHEMA ringfence TO app; GRANT ALL ON accounts TO app").await;
    let port = free();
    let app = |more: &str, sql: &str| {
        through(port, more, sql)
            .replace("postgres@127", "app:secret@127")
            .replace("psql -qXAt", "psql -qXAtw")
    };
    let script = [
        app("", ADD),
        app("", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"),
        app("?channel_binding=require", ADD) + " 2>&1",
    ];
    let url = |more: &str| server.url().replace("postgres@", "app:secret@") + more;
    let locked_by = |url: &str, script: &str| {
        locked(&cluster, &server, &format!("accounts/42 --postgres {url} --postgres-proxy {port}"), script)
    };
    let verified = url(&format!("?sslmode=verify-full&sslrootcert={}", authority.display()));
    let out = run(locked_by(&verified, &script.join("\n"))).await.with(2).out;
    assert!(out.starts_with("t\n") && out.contains("channel binding"), "{out}");
    assert_eq!(psql(&server, "SELECT balance FROM accounts WHERE id = 42").await, "1\n");
    // Less than that is refused, and no plain connection is made instead.
    for mode in ["", "?sslmode=require", "?sslmode=prefer"] {
        let err = run(locked_by(&url(mode), "echo started")).await.says(125, "");
        assert!(err.contains("verify-full alone"), "{mode}: {err}");
    }
    for (name, value) in [("hostaddr", server.address().ip().to_string()), ("requirepeer", "x".to_owned())] {
        let err = run(locked_by(&format!("{verified}&{name}={value}"), "echo started")).await.says(125, "");
        assert!(err.contains(&format!("psql follows {name}")), "{err}");
    }
    let err = run(locked_by(&format!("{verified}.gone"), "echo started")).await.says(125, "");
    assert!(err.contains(".gone"), "{err}");
}
