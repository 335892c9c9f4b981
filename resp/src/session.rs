//! One connection: its principal, its protocol version and database, and its requests, whose answers keep their order.
//!
//! Each request checks the credential again, as access rules may change while a connection is open. A client that may neither acquire nor
//! read any key can authenticate, and nothing else.

mod beside;
mod client;
mod hash;
mod login;
mod pending;
mod perform;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ringfence_access::{Digest, KeyRight};
use ringfence_http::{Answer, Connection, Remote};
use ringfence_service::{BYTES_OF_A_REQUEST, Caller, Failure, Proof, Right, Transacted};
use ringfence_wire::{Holder, PrincipalName};

use crate::command::Command;
use crate::frame::Request;
use crate::key_name::Naming;
use crate::node::Node;
use crate::refused::{Kind, Refused};
use crate::reply::{Protocol, Reply};
use crate::request_log::OpenRequest;
use crate::response::{self, Encoded};
use crate::verbs::Place;
use crate::work::{From, Work};

use beside::NamedKeys;
use pending::Pending;

/// A connection.
pub(crate) struct Session {
    peer: Peer,
    id: u64,
    credential: Option<Digest>,
    pending: Pending,
    /// The keys of the requests that are being answered beside others.
    named: NamedKeys,
    is_first: bool,
    /// The next request was counted already.
    is_counted: bool,
}

/// What requests use of the connection that they came on. Those beside others have a copy.
#[derive(Clone)]
struct Peer {
    node: Arc<Node>,
    remote: Arc<Remote>,
    protocol: Protocol,
    database: u16,
    /// The name that the client gave itself. Its leases show it as the holder.
    name: Option<Holder>,
    /// The number of the last lease that was acquired here. Later answers reach the client only if the answer about this lease does, or if
    /// that came too late: then the lease's time is over, and it is taken back.
    last_acquired: Arc<AtomicU64>,
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
    connection: &'a Arc<Connection>,
}

/// The result of a command.
enum Done {
    Reply(Reply),
    /// A reply after which the connection closes.
    Last(Reply),
    Transacted(Transacted<Encoded>),
}

impl Session {
    pub(crate) fn new(node: Arc<Node>, remote: Arc<Remote>) -> Self {
        let id = node.next_connection();
        let last_acquired = Arc::new(AtomicU64::new(u64::MAX));
        let peer = Peer { node, remote, protocol: Protocol::Resp2, database: 0, name: None, last_acquired };
        let (pending, named) = (Pending::default(), NamedKeys::default());
        Self { peer, id, credential: None, pending, named, is_first: true, is_counted: false }
    }

    /// Answers a request when those before it are answered.
    pub(crate) async fn answer(&mut self, sent: &Bytes, connection: &Arc<Connection>) -> Answer {
        let request = match Request::read(sent) {
            Ok(request) => request,
            Err(malformed) => return response::last(&malformed.into()),
        };
        let Some(name) = request.arguments.first() else { return response::none() };
        let (name, command) = Command::of(name);
        let is_first = std::mem::take(&mut self.is_first);
        if request.is_words && !command.is_for_people(is_first) {
            return response::last(&Refused::new(
                Kind::Order,
                "ERR ringfence: lines of words are for PING, QUIT and a first AUTH: send arrays",
            ));
        }
        let is_counted = std::mem::take(&mut self.is_counted);
        let mut open = self.peer.open(name);
        let caller = self.caller().or_else(|failure| match command.is_for_strangers() {
            true => Ok(Caller::anybody()),
            false => Err(failure),
        });
        self.peer.owns(connection, caller.as_ref().ok());
        let asked = caller.as_ref().map_err(|failure| failure.clone().into()).and_then(|caller| {
            open.is_of(caller.principal());
            let asked = Asked { name, command, arguments: &request.arguments, sent, caller, connection };
            self.admit(asked, is_counted).map(|()| asked)
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
        }
        if matches!(command, Command::Auth | Command::Hello | Command::Reset) {
            self.peer.owns(connection, self.caller().as_ref().ok());
        }
        let mut answer = self.peer.conclude(done, open, caller.as_ref().ok(), connection).await;
        answer.is_last |= must_close;
        answer
    }

    /// The caller, by the access rules of this moment.
    fn caller(&self) -> Result<Caller, Failure> {
        let caller = self.peer.node.service.caller(self.proof(self.credential))?;
        Ok(caller.at(self.peer.remote.host()))
    }

    fn proof(&self, credential: Option<Digest>) -> Proof {
        let Peer { node, remote, .. } = &self.peer;
        if !node.service.has_rules() {
            return Proof::default();
        }
        Proof { credential, certificate: Arc::clone(&remote.names) }
    }

    /// Checks that the caller may send requests, and counts this one.
    fn admit(&self, asked: Asked<'_>, is_counted: bool) -> Result<(), Refused> {
        let (Asked { command, sent, caller, .. }, service) = (asked, &self.peer.node.service);
        check_rights(caller, command)?;
        // Strangers cannot keep principals from showing who they are.
        if !is_counted && !matches!(command, Command::Auth | Command::Hello) {
            service.count_request(caller)?;
        }
        service.count_more(caller, sent.len() / BYTES_OF_A_REQUEST, 0)?;
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
                Work::read(asked.arguments, self.peer.from(asked.caller, Place::Queued))?;
                let portion = asked.connection.portion(&self.peer.node.room, asked.sent.len());
                self.pending.queue(asked.sent, portion)
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
                let work = Work::read(arguments, self.peer.from(caller, Place::Alone))?;
                self.peer.perform(caller, asked.connection, &work).await
            }
        }
    }
}

impl Peer {
    fn open(&self, name: &'static str) -> OpenRequest {
        OpenRequest::new(Arc::clone(&self.node), self.remote.address, name)
    }

    /// Makes the sender of the last request the owner of the connection. Without access rules, nobody is a stranger: an idle client stays
    /// unless others need its room.
    fn owns(&self, connection: &Connection, caller: Option<&Caller>) {
        connection.belongs_to(caller.and_then(Caller::name).map(PrincipalName::as_str));
        connection.is_known(!self.node.service.has_rules());
    }

    fn naming(&self) -> Naming {
        Naming { database: self.database, rules: self.node.service.rules() }
    }

    fn from<'a>(&'a self, caller: &'a Caller, place: Place) -> From<'a> {
        From { node: &self.node, caller, naming: self.naming(), place }
    }

    /// Answers what a request came to. One that came too soon is held back, and may be closed meanwhile.
    async fn conclude(
        &self,
        done: Result<Done, Refused>,
        open: OpenRequest,
        caller: Option<&Caller>,
        connection: &Arc<Connection>,
    ) -> Answer {
        let encoded = |reply: &Reply| Encoded::of(reply, self.protocol, connection);
        let refused = done.as_ref().err().map(Refused::kind);
        if let Some(refused) = done.as_ref().err() {
            self.node.refused_calls.tell(refused, caller);
        }
        let mut answer = match done {
            Ok(Done::Transacted(transacted)) => {
                let acquired = transacted.acquired().last();
                if let Some(number) = acquired.and_then(|lease| self.node.service.number_of(lease)) {
                    self.last_acquired.store(number, Ordering::Relaxed);
                }
                response::of_transacted(transacted, open)
            }
            Ok(Done::Reply(reply)) => response::answer(encoded(&reply), open),
            Ok(Done::Last(reply)) => Answer { is_last: true, ..response::answer(encoded(&reply), open) },
            Err(refused) => response::answer(Err(refused), open),
        };
        // Another node may have a leader, and here all that is behind it would wait, too.
        answer.is_last |= refused == Some(Kind::NoLeader);
        if let Some(caller) = caller.filter(|_| refused == Some(Kind::RateLimited)) {
            connection.takes_little();
            connection.lasts();
            self.node.service.hold_back(caller.principal()).await;
        }
        answer
    }
}

/// Checks that the caller may send such commands.
fn check_rights(caller: &Caller, command: Command) -> Result<(), Failure> {
    if !command.is_for_strangers() {
        let [may_acquire, may_read] =
            [KeyRight::Acquire, KeyRight::Read].map(|right| caller.check(Right::OnKeys(right)));
        if command.is_for_holders() || may_read.is_err() {
            may_acquire?;
        }
    }
    Ok(())
}
