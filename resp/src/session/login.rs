//! Commands that set the principal, the protocol version and the database of a connection.

use bytes::Bytes;
use ringfence_access::Digest;
use ringfence_service::{BYTES_OF_A_REQUEST, Caller};
use ringfence_wire::Holder;

use super::asked::Asked;
use super::client::Client;
use super::{Done, Session};
use crate::command::CommandName;
use crate::frame::integer;
use crate::key_name::DATABASES;
use crate::refused::{Kind, Refused};
use crate::reply::{Protocol, Reply};
use crate::session::pending::Pending;

/// The version of Redis that a node claims to be.
pub(super) const REDIS: &str = "8.4.0";

/// The name that many clients send if they have a password but no name.
const NO_NAME: &[u8] = b"default";

/// What a client can say of itself and of its connection.
pub(super) struct Login {
    pub(super) credential: Option<Digest>,
    protocol: Protocol,
    name: Option<Holder>,
}

impl Session {
    /// What the connection is once a request is done: another one after AUTH and HELLO, which count as requests of the principal that they
    /// are from afterwards.
    ///
    /// # Errors
    /// It is none of either, or too large: the size of a request is counted once it is known whose it is, and that costs a hash.
    pub(super) fn login(&self, asked: &Asked) -> Result<Login, Refused> {
        CommandName::check(asked.name, asked.arguments.len() - 1)?;
        let arguments = &asked.arguments[1..];
        let is_login =
            matches!(asked.command, CommandName::Auth | CommandName::Hello) && !self.pending.is_queueing();
        match asked.command {
            _ if !is_login => Ok(self.as_it_is()),
            _ if asked.sent.len() >= BYTES_OF_A_REQUEST => {
                Err(Refused::arguments("ERR ringfence: AUTH and HELLO have less than 4 KiB"))
            }
            CommandName::Auth => self.auth(arguments),
            _ => self.hello(arguments),
        }
    }

    fn as_it_is(&self) -> Login {
        let Client { protocol, name, .. } = &self.client;
        Login { credential: self.credential, protocol: *protocol, name: name.clone() }
    }

    pub(super) fn log_in(&mut self, login: Login) -> Done {
        (self.credential, self.client.protocol, self.client.name) =
            (login.credential, login.protocol, login.name);
        Done::Reply(Reply::OK)
    }

    /// `AUTH [name] credential`
    fn auth(&self, arguments: &[Bytes]) -> Result<Login, Refused> {
        let credential = match arguments {
            [name, credential] => self.identify(name, credential)?,
            _ => self.identify(NO_NAME, arguments.first().expect("the number of arguments is checked"))?,
        };
        Ok(Login { credential: Some(credential), ..self.as_it_is() })
    }

    /// `HELLO [version [AUTH name credential] [SETNAME name]]`
    fn hello(&self, arguments: &[Bytes]) -> Result<Login, Refused> {
        let (version, mut rest) = match arguments.split_first() {
            Some((version, rest)) => (Some(version), rest),
            None => (None, arguments),
        };
        let (mut login, mut shown) = (self.as_it_is(), None);
        match version.map(|version| integer(version)) {
            None => {}
            Some(Some(2)) => login.protocol = Protocol::Resp2,
            Some(Some(3)) => login.protocol = Protocol::Resp3,
            Some(Some(_)) => {
                return Err(Refused::arguments("NOPROTO unsupported protocol version"));
            }
            Some(None) => {
                return Err(Refused::arguments("ERR Protocol version is not an integer or out of range"));
            }
        }
        while let Some((option, values)) = rest.split_first() {
            rest = match values {
                [name, secret, rest @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                    shown = Some((name, secret));
                    rest
                }
                [name, rest @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                    login.name = super::client_command::checked_name(name)?;
                    rest
                }
                _ => return Err(Refused::arguments("ERR Syntax error in HELLO")),
            };
        }
        // Once, whatever it repeats.
        if let Some((name, secret)) = shown {
            login.credential = Some(self.identify(name, secret)?);
        }
        Ok(login)
    }

    /// Answers `HELLO`.
    pub(super) fn greet(&mut self, login: Login) -> Done {
        let protocol = login.protocol;
        self.log_in(login);
        let text = |text: &'static str| Reply::bulk(text);
        Done::Reply(Reply::Map(vec![
            (text("server"), text("redis")),
            (text("version"), text(REDIS)),
            (text("proto"), Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
            (text("id"), Reply::Integer(self.id as i64)),
            (text("mode"), text("standalone")),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ]))
    }

    /// `RESET`: makes the connection as new.
    pub(super) fn reset(&mut self) -> Done {
        (self.credential, self.client.protocol, self.client.database) = (None, Protocol::Resp2, 0);
        (self.client.name, self.pending) = (None, Pending::default());
        Done::Reply(Reply::Status("RESET".into()))
    }

    /// `SELECT database`
    pub(super) fn select(&mut self, database: &Bytes) -> Result<Done, Refused> {
        let number = integer(database).ok_or_else(Refused::no_integer)?;
        let number = u16::try_from(number).ok().filter(|number| *number < DATABASES);
        self.client.database = number.ok_or_else(|| Refused::arguments("ERR DB index is out of range"))?;
        Ok(Done::Reply(Reply::OK))
    }

    /// The digest of `credential`, if it belongs to the principal with this name.
    fn identify(&self, name: &[u8], credential: &[u8]) -> Result<Digest, Refused> {
        let refused = |text: &'static str| Refused::new(Kind::Unauthenticated, text);
        if !self.client.door.service.has_rules() {
            let text = "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                        configuration is correct?";
            return Err(Refused::new(Kind::Order, text));
        }
        if !self.client.remote.is_encrypted {
            return Err(refused(
                "WRONGPASS ringfence: a credential over a plain connection is not accepted, and may have been read by others: \
                 use TLS (rediss://), and replace it",
            ));
        }
        let digest = Digest::of(credential);
        let caller = self.caller(Some(digest)).ok();
        let is_named = |caller: &Caller| {
            name == NO_NAME || caller.name().is_some_and(|own| own.as_str().as_bytes() == name)
        };
        match caller.filter(is_named) {
            Some(_) => Ok(digest),
            None => Err(refused("WRONGPASS invalid username-password pair or user is disabled.")),
        }
    }
}
