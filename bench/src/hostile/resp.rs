//! Hostile clients that speak the Redis protocol.

use std::io;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::shapes::{Shape, no_preparation, shape};
use super::stranger::{PATIENCE, Stranger};

/// The longest value and the most commands of a transaction that the protocol takes.
const MAX_BULK: usize = 64 << 10;
const MAX_MULTI: usize = 64;
/// A script that never ends by itself.
const ENDLESS: &str = "local x = 0 while true do x = x + 1 end";

pub(super) const SHAPES: &[Shape] = &[
    shape!("RESP: 1,100 silent connections a node", silent),
    shape!("RESP: 1,100 commands byte by byte", byte_by_byte),
    shape!("RESP: 300 halves of a command of 64 KiB", half_frames),
    shape!("RESP: 64 connections that pipeline PING", |it, end| flood(it, 64, &["PING"], end)),
    shape!("RESP: 64 connections that pipeline GET", |it, end| flood(it, 64, &["GET", "k"], end)),
    shape!("RESP: 1,000 connections that pipeline GET", |it, end| flood(it, 1_000, &["GET", "k"], end)),
    shape!("RESP: 64 connections that set and delete", sets),
    shape!("RESP: 64 connections of MULTI with 64 commands", transactions),
    shape!("RESP: 300 connections of MULTI without EXEC", unfinished_transactions),
    shape!("RESP: 64 connections of scripts that never end", endless),
    shape!("RESP: 64 connections of scripts that cannot be run", wrong_scripts),
    shape!("RESP: 300 connections of answers unread", unread),
    shape!("RESP: connections that come and go", churn),
];

/// A command as an array of bulk strings.
pub(super) fn command(words: &[&str]) -> String {
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len())
}

/// Sends a command again and again over this many connections, many commands at once. Returns the bytes of the answers.
async fn flood(stranger: &mut Stranger, connections: usize, words: &[&str], end: Instant) -> Result<u64> {
    let (leader, command) = (stranger.resp[0], command(words));
    let length = answer(stranger, &command).await?;
    let read = stranger.flood(leader, connections, |_| command.repeat(100).into_bytes(), end).await;
    Ok(read / length)
}

/// The length of the answer to one command.
async fn answer(stranger: &Stranger, command: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(stranger.resp[0]).await?;
    stream.write_all(command.as_bytes()).await?;
    let length = timeout(PATIENCE, stream.read(&mut [0; 4_096])).await??;
    ensure!(length > 0, "the connection was closed without an answer");
    Ok(length as u64)
}

async fn silent(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    stranger.keep(&stranger.resp.clone(), 1_100, b"", end).await
}

async fn byte_by_byte(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.resp[0];
    for _ in 0..1_100 {
        stranger.send(leader, b"*2\r\n$3\r\nGET\r\n$60000\r\n").await;
    }
    while Instant::now() < end {
        for stream in &mut stranger.open {
            // The node may have closed the connection.
            let _ = stream.write_all(b"k").await;
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok(1_100)
}

async fn half_frames(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let bulk = "x".repeat(MAX_BULK - 100);
    let length = bulk.len();
    let half = format!("*3\r\n$3\r\nSET\r\n${length}\r\n{bulk}\r\n${length}\r\n{}", &bulk[..length - 1]);
    stranger.keep(&[stranger.resp[0]], 300, half.as_bytes(), end).await
}

async fn sets(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let pairs = (0..50).map(|number| {
        let key = format!("k{number}");
        command(&["SET", &key, "v", "NX", "PX", "60000"]) + &command(&["DEL", &key])
    });
    let (leader, pairs) = (stranger.resp[0], pairs.collect::<String>());
    Ok(stranger.flood(leader, 64, |_| pairs.clone().into_bytes(), end).await / ":1\r\n".len() as u64)
}

/// MULTI, and as many commands on as many keys as a transaction may have.
fn multi(value: &str) -> String {
    let commands = (0..MAX_MULTI).map(|number| {
        let key = format!("k{}", number / 2);
        match number % 2 {
            0 => command(&["SET", &key, value, "NX", "PX", "60000"]),
            _ => command(&["DEL", &key]),
        }
    });
    command(&["MULTI"]) + &commands.collect::<String>()
}

async fn transactions(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.resp[0];
    let transaction = multi("v") + &command(&["EXEC"]);
    let read = stranger.flood(leader, 64, |_| transaction.clone().into_bytes(), end).await;
    Ok(read / (MAX_MULTI * "+QUEUED\r\n".len()) as u64)
}

async fn unfinished_transactions(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    stranger.keep(&[stranger.resp[0]], 300, multi(&"v".repeat(1_024)).as_bytes(), end).await
}

async fn endless(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    flood(stranger, 64, &["EVAL", ENDLESS, "0"], end).await
}

async fn wrong_scripts(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let text = "local x = 1 ".repeat(5_000) + "!";
    flood(stranger, 64, &["EVAL", &text, "0"], end).await
}

async fn unread(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let (leader, request) = (stranger.resp[0], command(&["ECHO", &"e".repeat(MAX_BULK - 1_000)]));
    let one = async || {
        let mut stream = TcpStream::connect(leader).await?;
        let mut sent = 0;
        // A node stops reading what it cannot answer.
        while let Ok(written) = timeout_at(end, stream.write_all(request.as_bytes())).await {
            written?;
            sent += 1;
        }
        io::Result::Ok(sent)
    };
    let all = join_all((0..300).map(|_| one())).await;
    Ok(all.into_iter().flatten().sum())
}

async fn churn(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        for node in stranger.resp.clone() {
            for _ in 0..30 {
                stranger.send(node, b"*1\r\n$4\r\nPING\r\n").await;
                done += 1;
            }
        }
        stranger.open.clear();
    }
    Ok(done)
}
