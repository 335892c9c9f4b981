//! One connection: its principal, its protocol version and database, and its requests, whose answers keep their order.
//!
//! Each request checks the credential again, as access rules may change while a connection is open. A client that may neither acquire nor
//! read any key can authenticate, and nothing else.

mod asked;
mod beside;
mod client;
mod client_command;
mod hash;
mod login;
mod pending;
mod perform;
mod server;

use std::sync::Arc;

use ringfence_access::Digest;
use ringfence_http::{Answer, Connection, Remote};
use ringfence_service::{Caller, Failure, Proof, Transacted};

use crate::command::CommandName;
use crate::door::Door;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;
use crate::response::{self, Encoded};
use crate::verbs::Context;
use crate::work::Work;

pub(crate) use asked::Read;

use asked::Asked;
use beside::NamedKeys;
use client::Client;
use login::Login;
use pending::Pending;

/// A connection.
pub(crate) struct Session {
    client: Client,
    id: u64,
    credential: Option<Digest>,
    pending: Pending,
    /// The keys of the requests that are being answered beside others.
    named: NamedKeys,
    is_first: bool,
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
    pub(crate) fn new(door: Arc<Door>, remote: Arc<Remote>) -> Self {
        let (id, client) = (door.next_connection(), Client::new(door, remote));
        let (pending, named) = (Pending::default(), NamedKeys::default());
        Self { client, id, credential: None, pending, named, is_first: true }
    }

    /// Answers a request when those before it are answered.
    pub(crate) async fn answer(&mut self, read: Read, connection: &Arc<Connection>) -> Answer {
        let mut asked = match read {
            Ok(Some(asked)) => asked,
            Ok(None) => return response::none(),
            Err(refused) => return response::refusal(&refused, true),
        };
        asked.visit.begins();
        let (command, login) = (asked.command, self.login(&asked));
        let shown = login.as_ref().map_or(self.credential, |login| login.credential);
        let admitted = self.admit(&mut asked, shown).and_then(|()| asked.visit.arrived(asked.sent.len()));
        self.client.owns(connection, Some(asked.visit.caller()));
        // Redis does not refuse it, so the client may not look, and what it sends next would mean something else.
        let mut must_close = admitted.is_err() && command.is_of_connection();
        let done = match admitted {
            Ok(()) => self.run(&mut asked, login, connection).await,
            Err(failure) => Err(failure.into()),
        };
        if let Err(refused) = &done {
            self.pending.refuse(command);
            must_close |= refused.kind() == Kind::RateLimited && command.is_of_connection();
        }
        if command == CommandName::Reset {
            self.client.owns(connection, self.caller(self.credential).ok().as_ref());
        }
        let mut answer = self.client.conclude(done, asked.visit, connection).await;
        answer.is_last |= must_close;
        answer
    }

    /// Whether a request may be done that shows a credential, by the access rules of this moment.
    fn admit(&self, asked: &mut Asked, shown: Option<Digest>) -> Result<(), Failure> {
        asked.visit.admit(self.proof(shown), Some(self.client.remote.host()), asked.command.right())
    }

    /// Who shows a credential.
    fn caller(&self, shown: Option<Digest>) -> Result<Caller, Failure> {
        self.client.door.service.caller(self.proof(shown))
    }

    fn proof(&self, credential: Option<Digest>) -> Proof {
        let Client { door, remote, .. } = &self.client;
        if !door.service.has_rules() {
            return Proof::default();
        }
        Proof { credential, certificate: Arc::clone(&remote.names) }
    }

    async fn run(
        &mut self,
        asked: &mut Asked,
        login: Result<Login, Refused>,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        let login = login?;
        match self.pending.is_queueing() {
            true => self.behind_multi(asked, connection).await,
            false => self.at_once(asked, login, connection).await,
        }
    }

    /// Runs or queues a command behind MULTI.
    async fn behind_multi(
        &mut self,
        asked: &mut Asked,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        match asked.command {
            CommandName::Discard => self.discard(),
            CommandName::Exec => self.exec(asked, connection).await,
            CommandName::Quit => Ok(Done::Last(Reply::OK)),
            CommandName::Reset => Ok(self.reset()),
            CommandName::Work | CommandName::Ping => {
                Work::read(&asked.arguments, &mut self.client.from(&mut asked.visit, Context::Queued))?;
                let portion = connection.portion(&self.client.door.room, asked.sent.len());
                self.pending.queue(&asked.sent, portion)
            }
            CommandName::Multi => Err(Refused::new(Kind::Order, "ERR MULTI calls can not be nested")),
            CommandName::Watch => Err(Refused::new(Kind::Order, "ERR WATCH inside MULTI is not allowed")),
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
        let Asked { name, command, arguments, visit, work, .. } = asked;
        match *command {
            CommandName::Auth => Ok(self.log_in(login)),
            CommandName::Hello => Ok(self.greet(login)),
            CommandName::Quit => Ok(Done::Last(Reply::OK)),
            CommandName::Reset => Ok(self.reset()),
            CommandName::Select => self.select(&arguments[1]),
            CommandName::Client => self.client(&arguments[1..]),
            CommandName::Info => Ok(server::info(&arguments[1..])),
            CommandName::Role => Ok(server::role()),
            CommandName::Commands => server::command(&arguments[1..]),
            CommandName::Config => server::config(&arguments[1..]),
            CommandName::Cluster => Err(server::no_cluster()),
            CommandName::Wait => self.wait(&arguments[1..]),
            CommandName::Script => self.script(&arguments[1..], visit),
            CommandName::Hget | CommandName::Hmget => self.hash(*command, &arguments[1..], visit).await,
            CommandName::Multi => Ok(self.pending.begin()),
            CommandName::Watch => self.watch(&arguments[1..], visit, connection).await,
            CommandName::Unwatch => Ok(self.pending.unwatch()),
            CommandName::Exec | CommandName::Discard => {
                let text = format!("ERR {} without MULTI", name.to_uppercase());
                Err(Refused::new(Kind::Order, text))
            }
            CommandName::Ping | CommandName::Work => {
                let work = match work.take() {
                    Some(work) => work,
                    None => Work::read(arguments, &mut self.client.from(visit, Context::Alone))?,
                };
                self.client.perform(visit, connection, &work).await
            }
        }
    }
}
