//! Programs that know nothing of tokens, with drivers that do not read `PGOPTIONS`: their connection string claims.
//!
//! The drivers come from the registries of their languages.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../mysql/installation.rs"]
mod installation;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_guard::postgres;
use ringfence_harness::{MariaDbServer, PostgresServer};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::installation::installation;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY, total int); INSERT INTO orders VALUES (42, 0);";

/// How to start a program, but for its connection string. `None` if this machine lacks a tool.
type Program = Option<Vec<PathBuf>>;

/// A folder of its own for what is made of the sources.
fn made(language: &str) -> (PathBuf, PathBuf) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers").join(language);
    std::fs::create_dir_all(&target).unwrap();
    (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(language), target)
}

/// Runs a command that makes a program. `None` if it is not installed.
async fn make(folder: &Path, words: &[&str]) -> Option<()> {
    let command = Command::new(words[0]).args(&words[1..]).current_dir(folder).kill_on_drop(true).output();
    let output = match tokio::time::timeout(10 * SOON, command).await.unwrap() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {} is not installed", words[0]);
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

async fn go() -> Program {
    let (source, target) = made("go");
    let program = target.join("writes");
    make(&source, &["go", "build", "-o", program.to_str().unwrap(), "."]).await?;
    Some(vec![program])
}

async fn java() -> Program {
    let (source, target) = made("java");
    for artifact in ["org.postgresql:postgresql:42.7.14", "org.mariadb.jdbc:mariadb-java-client:3.5.11"] {
        let [artifact, to] =
            [format!("-Dartifact={artifact}"), format!("-DoutputDirectory={}", target.display())];
        make(&target, &["mvn", "--quiet", "--batch-mode", "dependency:copy", &artifact, &to]).await?;
    }
    make(&source, &["javac", "-d", target.to_str().unwrap(), "Writes.java"]).await?;
    let path = format!("{0}:{0}/*", target.display());
    Some(["java", "-cp", &path, "Writes"].map(PathBuf::from).to_vec())
}

async fn python() -> Program {
    let (source, target) = made("python");
    make(&target, &["python3", "-m", "venv", "."]).await?;
    make(&target, &["bin/pip", "install", "--quiet", "--disable-pip-version-check", "asyncpg==0.32.0"])
        .await?;
    Some(vec![target.join("bin/python"), source.join("writes.py")])
}

/// A program that runs, and has a connection from its first write on.
struct Writer {
    child: Child,
    outcomes: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(program: &[PathBuf], url: &str) -> Self {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let outcomes = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, outcomes }
    }

    /// What came of one write.
    async fn write(&mut self) -> String {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
        tokio::time::timeout(SOON, self.outcomes.next_line()).await.unwrap().unwrap().unwrap()
    }
}

/// `url` of a token, or of none, and a touch of a newer holder.
async fn play(program: &[PathBuf], url: impl Fn(Option<u64>) -> String, touch: impl AsyncFnOnce()) {
    let mut late = Writer::start(program, &url(Some(7)));
    for _ in 0..3 {
        assert_eq!(late.write().await, "written");
    }
    assert_eq!(Writer::start(program, &url(None)).write().await, "RF428");
    touch().await;
    assert_eq!(late.write().await, "RF412");
    assert_eq!(Writer::start(program, &url(Some(8))).write().await, "written");
    assert_eq!(late.write().await, "RF412");
}

async fn with_postgres(program: &[PathBuf], prefix: &str) {
    let server = PostgresServer::start().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(postgres::SQL).await.unwrap();
    let protect = "SELECT ringfence.protect('orders', 'orders/', 'id', by_connection => true)";
    client.batch_execute(&format!("{TABLE}{protect}")).await.unwrap();
    let url = |token: Option<u64>| {
        let options = token.map(|token| format!("-c ringfence.may_claim=orders%2F42={token}"));
        let options =
            utf8_percent_encode(options.as_deref().unwrap_or_default(), NON_ALPHANUMERIC).to_string();
        format!("{prefix}{}/postgres?user=postgres&options={options}", server.address())
    };
    play(program, url, async || {
        client.batch_execute("SELECT ringfence.touch('orders/42', 8)").await.unwrap()
    })
    .await;
}

async fn with_mariadb(program: &[PathBuf], url: impl Fn(&MariaDbServer, &str) -> String) {
    let server = MariaDbServer::start().await.unwrap();
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname(server.address().ip().to_string())
        .tcp_port(server.address().port())
        .db_name(Some("test"));
    let mut client = mysql_async::Conn::new(options).await.unwrap();
    let protect = "CREATE TRIGGER orders_update AFTER UPDATE ON orders FOR EACH ROW CALL ringfence_demand(CONCAT('orders/', OLD.id))";
    for sql in installation().into_iter().chain([TABLE, protect]) {
        client.query_drop(sql).await.expect(sql);
    }
    let url = |token: Option<u64>| {
        let touch = |token| format!("@ringfence_may_claim=ringfence_touch('orders%2F42',{token},NULL)");
        url(&server, &token.map(touch).unwrap_or_default())
    };
    let touch =
        async || client.query_drop("SET @touched = ringfence_touch('orders/42', 8, NULL)").await.unwrap();
    play(program, url, touch).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn pgx_and_go_sql_driver() {
    let Some(program) = go().await else { return };
    with_postgres(&program, "postgres://").await;
    with_mariadb(&program, |server, touch| format!("root@tcp({})/test?{touch}", server.address())).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn jdbc() {
    let Some(program) = java().await else { return };
    with_postgres(&program, "jdbc:postgresql://").await;
    let url = |server: &MariaDbServer, touch: &str| {
        format!(
            "jdbc:mariadb://{}/test?user=root&sessionVariables={}",
            server.address(),
            touch.replace("%2F", "/")
        )
    };
    with_mariadb(&program, url).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn asyncpg() {
    let Some(program) = python().await else { return };
    with_postgres(&program, "postgresql://").await;
}
