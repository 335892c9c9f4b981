//! The same scripts in a real Redis. `UPDATE=1` writes its answers to `corpus.txt`.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use std::{env, fs};

use ringfence_harness::RedisServer;

use super::corpus::{corpus, normal};
use super::programs::program;
use super::random::{random_bytes, seeds_for_some_time};
use super::{ARGUMENTS, KEYS, answer, shown};
use crate::Reply;

#[tokio::test]
async fn the_answers_are_those_of_redis() {
    let server = match RedisServer::builder().start().await {
        Ok(server) => server,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut connection = Connection::open(&server);
    let mut written = String::new();
    let mut wrong = Vec::new();
    for (script, expected) in corpus() {
        connection.call(&["FLUSHALL"]);
        let count = KEYS.len().to_string();
        let answer = connection.call(&[&["EVAL", &script, &count], &KEYS[..], &ARGUMENTS[..]].concat());
        let found = without_place(&shown(&answer));
        let _ = write!(written, "{script}\n--> {found}\n\n");
        if normal(&found) != normal(&expected) {
            wrong.push(format!("{script}\n  written: {expected}\n  Redis: {found}"));
        }
    }
    if env::var_os("UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/corpus.txt");
        return fs::write(path, written).unwrap();
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Programs whose answers once differed.
#[tokio::test]
async fn random_programs_answer_as_in_redis() {
    compare((0..400).map(random_bytes)).await;
}

/// The same with random programs, for `FUZZ_SECONDS`.
#[tokio::test]
#[ignore = "slow"]
async fn many_random_programs_answer_as_in_redis() {
    compare(seeds_for_some_time().map(random_bytes)).await;
}

async fn compare(programs: impl Iterator<Item = Vec<u8>>) {
    let server = match RedisServer::builder().start().await {
        Ok(server) => server,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut connection = Connection::open(&server);
    let (mut answers, mut errors, mut refused) = (0, 0, 0);
    for bytes in programs {
        let program = program(&bytes);
        connection.call(&["FLUSHALL"]);
        let count = KEYS.len().to_string();
        let reply = connection.call(&[&["EVAL", &program, &count], &KEYS[..], &ARGUMENTS[..]].concat());
        let (expected, found) = (without_place(&shown(&reply)), answer(program.as_bytes()));
        if found.ends_with("the length of a table with holes is not supported here") {
            refused += 1;
            continue;
        }
        assert_eq!(normal(&found), normal(&expected), "{program}");
        *(if found.starts_with('-') { &mut errors } else { &mut answers }) += 1;
    }
    println!("{answers} answers and {errors} errors were the same, and {refused} programs were refused");
    assert!(answers + errors > 5 * refused, "most programs are refused: {refused} of them");
    assert!(answers > errors / 10, "most programs fail: {answers} of them did not, and {errors} did");
}

/// An error without the hash of the script.
fn without_place(answer: &str) -> String {
    match answer.split_once(" script: ") {
        Some((text, _)) if answer.starts_with('-') => text.to_owned(),
        _ => answer.to_owned(),
    }
}

/// A connection that reads whole replies.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(server: &RedisServer) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a command. A script that does not end gets no answer.
    fn call(&mut self, words: &[&str]) -> Reply {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(request, "${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        assert!(self.0.fill_buf().is_ok(), "Redis does not answer {words:#?}");
        self.reply()
    }

    fn reply(&mut self) -> Reply {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        let line = line.strip_suffix(b"\r\n").expect("the server closed the connection");
        let (kind, text) = line.split_first().unwrap();
        let number = || std::str::from_utf8(text).unwrap().parse::<i64>().unwrap();
        match kind {
            b'+' => Reply::Status(text.to_vec().into()),
            b'-' => Reply::Error(text.to_vec().into()),
            b':' => Reply::Integer(number()),
            b'$' if number() < 0 => Reply::Null,
            b'*' if number() < 0 => Reply::NullArray,
            b'$' => {
                let mut bytes = vec![0; number() as usize + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Reply::bulk(bytes)
            }
            b'*' => Reply::Array((0..number()).map(|_| self.reply()).collect()),
            other => panic!("a reply begins with {other}"),
        }
    }
}
