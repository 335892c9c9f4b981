//! The same scripts in a real Redis. `UPDATE=1` writes its answers to `corpus.txt`.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::{env, fs};

use ringfence_harness::RedisServer;

use super::corpus::{corpus, normal};
use super::{ARGUMENTS, KEYS, shown};
use crate::reply::Reply;

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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/script/tests/corpus.txt");
        return fs::write(path, written).unwrap();
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
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
        Self(BufReader::new(TcpStream::connect(server.address()).unwrap()))
    }

    fn call(&mut self, words: &[&str]) -> Reply {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(request, "${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
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
