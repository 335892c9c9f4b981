//! One connection: its principal, its protocol version and database, and its requests, whose answers keep their order.
//!
//! Each request checks the credential again, as access rules may change while a connection is open. A client that may neither acquire nor
//! read any key can authenticate, and nothing else.

mod client;
mod hash;
mod login;
mod pending;
mod perform;
mod server;

use std::sync::Arc;

use bytes::Bytes;
use ringfence_access::{Digest, KeyRight};
use ringfence_http::{Connection, Remote};
use ringfence_service::{BYTES_OF_A_REQUEST, Caller, Failure, Proof, Right, Unsent};
use ringfence_wire::{Holder, PrincipalName};

use crate::command::Command;
use crate::frame::Request;
use crate::node::Node;
use crate::refused::{Kind, Refused};
use crate::reply::{Protocol, Reply};
use crate::request_log::OpenRequest;
use crate::verbs::Place;
use crate::work::{From, Work};

use pending::Pending;

/// The longest reply, in bytes.
pub(crate) const MAX_REPLY: usize = 64 << 10;

/// A connection.
pub(crate) struct Session {
    node: Arc<Node>,
    remote: Arc<Remote>,
    id: u64,
    credential: Option<Digest>,
    protocol: Protocol,
    database: u16,
    /// The name that the client gave itself. Its leases show it as the holder.
    name: Option<Holder>,
    pending: Pending,
    is_first: bool,
}

/// A request.
#[derive(Clone, Copy)]
struct Asked<'a> {
    name: &'static str,
    command: Command,
    /// The first one is the name of the command.
    arguments: &'a [Bytes],
    sent: &'a Bytes,
    caller: &'a Caller,
    connection: &'a Connection,
}

/// The answer to a request.
pub(crate) struct Answered {
    pub(crate) bytes: Bytes,
    /// Whether the connection closes after it.
    pub(crate) is_last: bool,
    /// The grants that it acknowledges.
    pub(crate) unsent: Option<Unsent>,
}

/// The result of a command.
enum Done {
    Reply(Reply),
    /// A reply after which the connection closes.
    Last(Reply),
    /// An encoded reply, with the grants that it acknowledges.
    Bytes(Bytes, Option<Unsent>),
}

impl Session {
    pub(crate) fn new(node: Arc<Node>, remote: Arc<Remote>) -> Self {
        let id = node.next_connection();
        Self {
            node,
            remote,
            id,
            credential: None,
            protocol: Protocol::Resp2,
            database: 0,
            name: None,
            pending: Pending::default(),
            is_first: true,
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(&mut self, sent: &Bytes, connection: &Connection) -> Answered {
        let request = match Request::read(sent) {
            Ok(request) => request,
            Err(malformed) => {
                return Answered { bytes: error(&malformed.into()), is_last: true, unsent: None };
            }
        };
        let Some(name) = request.arguments.first() else {
            return Answered { bytes: Bytes::new(), is_last: false, unsent: None };
        };
        let (name, command) = Command::of(name);
        let is_first = std::mem::take(&mut self.is_first);
        if request.is_words && !command.is_for_people(is_first) {
            let refused = Refused::new(
                Kind::Order,
                "ERR ringfence: lines of words are for PING, QUIT and a first AUTH: send arrays",
            );
            return Answered { bytes: error(&refused), is_last: true, unsent: None };
        }
        let node = Arc::clone(&self.node);
        let mut open = OpenRequest::new(&node.log, self.remote.address, name);
        let caller = self.caller().or_else(|failure| match command.is_for_strangers() {
            true => Ok(Caller::anybody()),
            false => Err(failure),
        });
        belongs_to(connection, caller.as_ref().ok());
        let asked = caller.as_ref().map_err(|failure| failure.clone().into()).and_then(|caller| {
            open.is_of(caller.principal());
            let asked = Asked { name, command, arguments: &request.arguments, sent, caller, connection };
            self.admit(asked).map(|()| asked)
        });
        // Redis does not refuse it, so the client may not look, and what it sends next would mean something else.
        let mut must_close = asked.is_err() && command.is_of_connection();
        let done = match asked {
            Ok(asked) => self.run(asked).await,
            Err(refused) => Err(refused),
        };
        if let Err(refused) = &done {
            self.pending.refuse(command);
            must_close |= refused.kind() == Kind::RateLimited && command.is_of_connection();
            // Another node may have a leader, and here all that is behind it would wait, too.
            must_close |= refused.kind() == Kind::NoLeader;
        }
        if matches!(command, Command::Auth | Command::Hello | Command::Reset) {
            belongs_to(connection, self.caller().as_ref().ok());
        }
        let is_too_fast = matches!(&done, Err(refused) if refused.kind() == Kind::RateLimited);
        let mut answered = self.answered(done, open);
        answered.is_last |= must_close;
        if let Some(caller) = caller.ok().filter(|_| is_too_fast) {
            // It may be closed meanwhile.
            connection.takes_little();
            connection.lasts();
            node.service.hold_back(caller.principal()).await;
        }
        answered
    }

    fn answered(&self, done: Result<Done, Refused>, open: OpenRequest) -> Answered {
        let encoded = |reply: &Reply| {
            let mut bytes = Vec::new();
            reply.encode(self.protocol, &mut bytes, MAX_REPLY).map(|()| bytes.into()).map_err(|_| too_long())
        };
        let (result, is_last, unsent) = match done {
            Ok(Done::Reply(reply)) => (encoded(&reply), false, None),
            Ok(Done::Last(reply)) => (encoded(&reply), true, None),
            Ok(Done::Bytes(bytes, unsent)) => (Ok(bytes), false, unsent),
            Err(refused) => (Err(refused), false, None),
        };
        match result {
            Ok(bytes) => {
                open.answered();
                Answered { bytes, is_last, unsent }
            }
            Err(refused) => {
                open.refused(refused.kind());
                Answered { bytes: error(&refused), is_last, unsent: None }
            }
        }
    }

    /// The caller, by the access rules of this moment.
    fn caller(&self) -> Result<Caller, Failure> {
        self.node.service.caller(self.proof(self.credential))
    }

    fn proof(&self, credential: Option<Digest>) -> Proof {
        if !self.node.service.has_rules() {
            return Proof::default();
        }
        Proof { credential, certificate: Arc::clone(&self.remote.names) }
    }

    /// Checks that the caller may send requests, and counts this one.
    fn admit(&self, asked: Asked<'_>) -> Result<(), Refused> {
        let Asked { command, sent, caller, .. } = asked;
        if !command.is_for_strangers() {
            let [may_acquire, may_read] =
                [KeyRight::Acquire, KeyRight::Read].map(|right| caller.check(Right::OnKeys(right)));
            if command.is_for_holders() || may_read.is_err() {
                may_acquire?;
            }
        }
        // Strangers cannot keep principals from showing who they are.
        if !matches!(command, Command::Auth | Command::Hello) {
            self.node.service.count_request(caller)?;
        }
        self.node.service.count_more(caller, sent.len() / BYTES_OF_A_REQUEST, 0)?;
        Ok(())
    }

    async fn run(&mut self, asked: Asked<'_>) -> Result<Done, Refused> {
        Command::check(asked.name, asked.arguments.len() - 1)?;
        if self.pending.is_queueing() { self.behind_multi(asked).await } else { self.at_once(asked).await }
    }

    /// Runs or queues a command behind MULTI.
    async fn behind_multi(&mut self, asked: Asked<'_>) -> Result<Done, Refused> {
        match asked.command {
            Command::Discard => self.discard(),
            Command::Exec => self.exec(asked).await,
            Command::Quit => Ok(Done::Last(Reply::OK)),
            Command::Reset => Ok(self.reset()),
            Command::Work | Command::Ping => {
                Work::read(asked.arguments, self.from(asked.caller, Place::Queued))?;
                self.pending.queue(asked.sent, self.node.room.share(asked.caller.name()))
            }
            Command::Multi => Err(Refused::new(Kind::Order, "ERR MULTI calls can not be nested")),
            Command::Watch => Err(Refused::new(Kind::Order, "ERR WATCH inside MULTI is not allowed")),
            _ => {
                let text = format!("ERR ringfence: '{}' cannot be queued behind MULTI", asked.name);
                Err(Refused::new(Kind::Order, text))
            }
        }
    }

    async fn at_once(&mut self, asked: Asked<'_>) -> Result<Done, Refused> {
        let Asked { name, command, arguments, caller, .. } = asked;
        match command {
            Command::Auth | Command::Hello => self.log_in(asked),
            Command::Quit => Ok(Done::Last(Reply::OK)),
            Command::Reset => Ok(self.reset()),
            Command::Select => self.select(&arguments[1]),
            Command::Client => self.client(&arguments[1..]),
            Command::Info => Ok(server::info(&arguments[1..])),
            Command::Role => Ok(server::role()),
            Command::Commands => server::command(&arguments[1..]),
            Command::Config => server::config(&arguments[1..]),
            Command::Cluster => Err(server::no_cluster()),
            Command::Wait => self.wait(&arguments[1..]),
            Command::Script => self.script(&arguments[1..], caller),
            Command::Hget | Command::Hmget => self.hash(command, &arguments[1..], caller).await,
            Command::Multi => Ok(self.pending.begin()),
            Command::Watch => self.watch(asked).await,
            Command::Unwatch => Ok(self.pending.unwatch()),
            Command::Exec | Command::Discard => {
                let text = format!("ERR {} without MULTI", name.to_uppercase());
                Err(Refused::new(Kind::Order, text))
            }
            Command::Ping | Command::Work => {
                let work = Work::read(arguments, self.from(caller, Place::Alone))?;
                self.perform(asked, &work).await
            }
        }
    }

    fn from<'a>(&'a self, caller: &'a Caller, place: Place) -> From<'a> {
        From { scripts: &self.node.scripts, principal: caller.name(), database: self.database, place }
    }
}

/// Makes the sender of the last request the owner of the connection.
fn belongs_to(connection: &Connection, caller: Option<&Caller>) {
    connection.belongs_to(caller.and_then(Caller::name).map(PrincipalName::as_str));
}

fn error(refused: &Refused) -> Bytes {
    let mut bytes = Vec::new();
    // Both versions of the protocol encode errors alike.
    let encoded = Reply::error(refused.text()).encode(Protocol::Resp2, &mut bytes, MAX_REPLY);
    encoded.expect("the text of a refusal is short");
    bytes.into()
}

pub(crate) fn too_long() -> Refused {
    Refused::arguments("ERR ringfence: the reply would have more than 64 KiB")
}
