//! One connection: its principal, its protocol version and database, and its requests, whose answers keep their order.
//!
//! Each request checks the credential again, as access rules may change while a connection is open. A client that may neither acquire nor
//! read any key can authenticate, and nothing else.

mod asked;
mod beside;
mod client;
mod hash;
mod login;
mod peer;
mod pending;
mod perform;
mod server;

use std::sync::Arc;

use bytes::Bytes;
use ringfence_access::Digest;
use ringfence_http::{Answer, Connection, Remote};
use ringfence_service::{Caller, Failure, Proof, Transacted};

use crate::command::Command;
use crate::node::Node;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;
use crate::response::{self, Encoded};
use crate::verbs::Place;
use crate::work::Work;

use asked::Asked;
use beside::NamedKeys;
use login::Login;
use peer::Peer;
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
    /// The next request, if it was read already.
    alone: Option<Asked>,
}

/// The result of a command.
#[expect(clippy::large_enum_variant, reason = "it is moved a few times, which costs less than a box")]
enum Done {
    Reply(Reply),
    /// A reply after which the connection closes.
    Last(Reply),
    Transacted(Transacted<Encoded>),
}

impl Session {
    pub(crate) fn new(node: Arc<Node>, remote: Arc<Remote>) -> Self {
        let (id, peer) = (node.next_connection(), Peer::new(node, remote));
        let (pending, named) = (Pending::default(), NamedKeys::default());
        Self { peer, id, credential: None, pending, named, is_first: true, alone: None }
    }

    /// Answers a request when those before it are answered.
    pub(crate) async fn answer(&mut self, sent: &Bytes, connection: &Arc<Connection>) -> Answer {
        let read = self.alone.take().map_or_else(|| self.read(sent), |asked| Ok(Some(asked)));
        let mut asked = match read {
            Ok(Some(asked)) => asked,
            Ok(None) => return response::none(),
            Err(refused) => return response::refusal(&refused, true),
        };
        asked.visit.begins();
        let (command, login) = (asked.command, self.login(&asked, sent));
        let shown = login.as_ref().map_or(self.credential, |login| login.credential);
        let admitted = self.admit(&mut asked, shown).and_then(|()| asked.visit.arrived(sent.len()));
        self.peer.owns(connection, Some(asked.visit.caller()));
        // Redis does not refuse it, so the client may not look, and what it sends next would mean something else.
        let mut must_close = admitted.is_err() && command.is_of_connection();
        let done = match admitted {
            Ok(()) => self.run(&mut asked, login, sent, connection).await,
            Err(failure) => Err(failure.into()),
        };
        if let Err(refused) = &done {
            self.pending.refuse(command);
            must_close |= refused.kind() == Kind::RateLimited && command.is_of_connection();
        }
        if command == Command::Reset {
            self.peer.owns(connection, self.caller(self.credential).ok().as_ref());
        }
        let mut answer = self.peer.conclude(done, asked.visit, connection).await;
        answer.is_last |= must_close;
        answer
    }

    /// Whether a request may be done that shows a credential, by the access rules of this moment.
    fn admit(&self, asked: &mut Asked, shown: Option<Digest>) -> Result<(), Failure> {
        asked.visit.admit(self.proof(shown), Some(self.peer.remote.host()), asked.command.right())
    }

    /// Who shows a credential.
    fn caller(&self, shown: Option<Digest>) -> Result<Caller, Failure> {
        self.peer.node.service.caller(self.proof(shown))
    }

    fn proof(&self, credential: Option<Digest>) -> Proof {
        let Peer { node, remote, .. } = &self.peer;
        if !node.service.has_rules() {
            return Proof::default();
        }
        Proof { credential, certificate: Arc::clone(&remote.names) }
    }

    async fn run(
        &mut self,
        asked: &mut Asked,
        login: Result<Login, Refused>,
        sent: &Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        let login = login?;
        match self.pending.is_queueing() {
            true => self.behind_multi(asked, sent, connection).await,
            false => self.at_once(asked, login, connection).await,
        }
    }

    /// Runs or queues a command behind MULTI.
    async fn behind_multi(
        &mut self,
        asked: &mut Asked,
        sent: &Bytes,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        match asked.command {
            Command::Discard => self.discard(),
            Command::Exec => self.exec(asked, connection).await,
            Command::Quit => Ok(Done::Last(Reply::OK)),
            Command::Reset => Ok(self.reset()),
            Command::Work | Command::Ping => {
                Work::read(&asked.arguments, &mut self.peer.from(&mut asked.visit, Place::Queued))?;
                let portion = connection.portion(&self.peer.node.room, sent.len());
                self.pending.queue(sent, portion)
            }
            Command::Multi => Err(Refused::new(Kind::Order, "ERR MULTI calls can not be nested")),
            Command::Watch => Err(Refused::new(Kind::Order, "ERR WATCH inside MULTI is not allowed")),
            _ => {
                let text = format!("ERR ringfence: '{}' cannot be queued behind MULTI", asked.name);
                Err(Refused::new(Kind::Order, text))
            }
        }
    }

    async fn at_once(
        &mut self,
        asked: &mut Asked,
        login: Login,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        let Asked { name, command, arguments, visit, work } = asked;
        match *command {
            Command::Auth => Ok(self.log_in(login)),
            Command::Hello => Ok(self.greet(login)),
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
            Command::Script => self.script(&arguments[1..], visit),
            Command::Hget | Command::Hmget => self.hash(*command, &arguments[1..], visit).await,
            Command::Multi => Ok(self.pending.begin()),
            Command::Watch => self.watch(&arguments[1..], visit, connection).await,
            Command::Unwatch => Ok(self.pending.unwatch()),
            Command::Exec | Command::Discard => {
                let text = format!("ERR {} without MULTI", name.to_uppercase());
                Err(Refused::new(Kind::Order, text))
            }
            Command::Ping | Command::Work => {
                let work = match work.take() {
                    Some(work) => work,
                    None => Work::read(arguments, &mut self.peer.from(visit, Place::Alone))?,
                };
                self.peer.perform(visit, connection, &work).await
            }
        }
    }
}
