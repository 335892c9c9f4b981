//! What a caller may do.
//!
//! A door checks the [`Right`] that a request requires before it reads more of it. What a request does with keys is checked again
//! for these keys: the service proposes and shows only what is [`Allowed`], and only [`Caller`] makes that.
//!
//! Leases belong to the principal that acquired them: to others, their ids are unknown. A lease id is a secret, and still no
//! permission: calls about a lease need the right on its keys. This node's table has these. If it does not know the lease, it
//! may lag, so it catches up first.

use std::fmt::{self, Display, Formatter};

use ringfence_access::{ClusterRight, KeyRight};
use ringfence_lease::{Attachment, Command, CommandRight, LeaseTable, Refusal, Subject};
use ringfence_raft::{Handle, Unanswered};
use ringfence_wire::{Key, LeaseId};

use crate::caller::Caller;
use crate::failure::Failure;
use crate::order::Order;

/// What a request requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Nothing, and who it is does not matter.
    Public,
    /// Nothing, and a stranger may send it, too. It counts for who it is, if that is known.
    Stranger,
    /// Nothing, but the answer depends on who it is.
    Identity,
    /// One of these, on any keys.
    AnyOf(&'static [KeyRight]),
    /// This, on the keys of the request.
    OnKeys(KeyRight),
    /// This.
    OnCluster(ClusterRight),
}

impl Display for Right {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Public | Self::Stranger | Self::Identity => f.write_str("none"),
            Self::AnyOf(rights) => {
                let rights: Vec<_> = rights.iter().map(|right| format!("`{right}`")).collect();
                f.write_str(&rights.join(" or "))
            }
            Self::OnKeys(right) => write!(f, "`{right}`"),
            Self::OnCluster(right) => write!(f, "`{right}`"),
        }
    }
}

/// Something that its caller may do, or see.
pub struct Allowed<T>(T);

impl<T> Allowed<T> {
    /// What it is.
    pub fn get(&self) -> &T {
        &self.0
    }

    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl Allowed<Command> {
    /// The end of a lease that this node has proposed, unless its client learns of it. `is_of_node`: this node chose the id.
    pub(crate) fn to_take_back((lease_id, attachment): (LeaseId, Attachment), is_of_node: bool) -> Self {
        Self(match is_of_node {
            true => Command::TakeBack { lease_id, attachment },
            false => Command::Detach { lease_id, attachment },
        })
    }
}

impl Caller {
    /// Checks what a request requires, as far as that does not depend on the keys of the request.
    pub(crate) fn check(&self, right: Right) -> Result<(), Failure> {
        let may = |right: &KeyRight| self.principal().may_somewhere(*right);
        let is_allowed = match &right {
            Right::Public | Right::Stranger | Right::Identity => true,
            Right::AnyOf(rights) => rights.iter().any(may),
            Right::OnKeys(right) => may(right),
            Right::OnCluster(right) => self.principal().may_with_cluster(*right),
        };
        if is_allowed { Ok(()) } else { Err(self.denied(&format!("this requires the right {right}"))) }
    }

    fn denied_on_keys(&self, right: KeyRight, of: &str) -> Failure {
        self.denied(&format!("this requires the right `{right}` on {of}"))
    }

    /// Checks a right on all `keys`.
    pub(crate) fn allow<'a>(
        &self,
        right: KeyRight,
        mut keys: impl Iterator<Item = &'a Key>,
    ) -> Result<(), Failure> {
        match keys.find(|key| !self.principal().may(right, key)) {
            None => Ok(()),
            Some(key) => Err(self.denied_on_keys(right, &format!("the key {key}"))),
        }
    }

    /// To read `key`.
    ///
    /// # Errors
    /// It may not.
    pub fn allow_key<'a>(&self, key: &'a Key) -> Result<Allowed<&'a Key>, Failure> {
        self.allow(KeyRight::Read, std::iter::once(key))?;
        Ok(Allowed(key))
    }

    /// To read all keys that start with `prefix`. They must be within one subtree that the caller may read: nothing is filtered.
    ///
    /// # Errors
    /// It may not.
    pub fn allow_under<'a>(&self, prefix: &'a str) -> Result<Allowed<&'a str>, Failure> {
        match self.principal().may_under(KeyRight::Read, prefix) {
            true => Ok(Allowed(prefix)),
            false => {
                Err(self.denied_on_keys(KeyRight::Read, &format!("all keys with the prefix {prefix:?}")))
            }
        }
    }

    /// To have the cluster do this.
    ///
    /// # Errors
    /// It may not.
    pub fn allow_order(&self, order: Order) -> Result<Allowed<Order>, Failure> {
        self.check(Right::OnCluster(ClusterRight::Operate))?;
        Ok(Allowed(order))
    }

    /// Whether answers may name holders of `keys`.
    pub(crate) fn sees_holders<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> bool {
        self.allow(KeyRight::Read, keys).is_ok()
    }

    /// What of `commands` the caller may do.
    pub(crate) async fn allow_commands(
        &self,
        handle: &Handle,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Allowed<Command>, Failure>>, Unanswered> {
        // Looking at the table holds up those who apply to it.
        if commands.iter().all(|command| self.may_whatever_is_held(command)) {
            return Ok(commands.into_iter().map(|command| Ok(Allowed(command))).collect());
        }
        let allow = |table: &LeaseTable, commands: Vec<Command>| {
            commands.into_iter().map(|command| self.allow_command(table, command)).collect()
        };
        let at_once = handle.try_view(|table| {
            let knows_all = commands.iter().all(|command| self.knows(table, command));
            if knows_all { Ok(allow(table, commands)) } else { Err(commands) }
        })?;
        match at_once {
            Ok(allowed) => Ok(allowed),
            Err(commands) => {
                handle.linearize().await?;
                Ok(handle.try_view(|table| allow(table, commands))?)
            }
        }
    }

    /// Whether the caller may do this whichever keys the lease has that `command` names.
    fn may_whatever_is_held(&self, command: &Command) -> bool {
        let Some(right) = command.right().map(on_keys) else { return false };
        match command.subject() {
            Subject::Keys(named) => named.iter().all(|key| self.principal().may(right, key)),
            Subject::Lease { .. } => self.principal().may_under(right, ""),
            Subject::Nothing | Subject::Holder { .. } => false,
        }
    }

    fn allow_command(&self, table: &LeaseTable, command: Command) -> Result<Allowed<Command>, Failure> {
        self.allow_subject(table, command.right(), command.subject())?;
        Ok(Allowed(command))
    }

    /// Whether the caller has the right on all that a command is about.
    fn allow_subject(
        &self,
        table: &LeaseTable,
        right: Option<CommandRight>,
        subject: Subject<'_>,
    ) -> Result<(), Failure> {
        match (right.map(on_keys), subject) {
            (None, _) | (_, Subject::Nothing) => Err(self.denied("no request may do this")),
            // Whose leases a conditional ends or extends, the table decides.
            (Some(right), Subject::Keys(named)) => self.allow(right, named.iter()),
            (Some(right), Subject::Lease { id, is_remembered }) => {
                match table.keys_of_lease(self.owner_name(), id) {
                    // It only becomes known as ended, so that a late acquire grants nothing: that takes no right.
                    None if is_remembered => Ok(()),
                    // It has ended, or was never acquired.
                    None => {
                        let lease = table.lease(self.owner_name(), id, None);
                        Err(lease.err().unwrap_or(Refusal::Unknown).into())
                    }
                    Some(keys) => self.allow_all(right, keys),
                }
            }
            (Some(right), Subject::Holder { key, token }) => {
                self.allow(right, std::iter::once(key))?;
                // The lease may have other keys, on which the caller has no right.
                self.allow_all(right, table.keys_of_holder(key, token).ok_or(Refusal::NotLive)?)
            }
        }
    }

    /// Checks a right on all `keys` of a lease, which the caller may not know.
    fn allow_all<'a>(&self, right: KeyRight, mut keys: impl Iterator<Item = &'a Key>) -> Result<(), Failure> {
        match keys.all(|key| self.principal().may(right, key)) {
            true => Ok(()),
            false => Err(self.denied_on_keys(right, "all keys of the lease")),
        }
    }

    /// Whether the caller may see and change the lease. Who lost a right must not keep its leases by renewing them.
    pub(crate) fn allow_lease(&self, table: &LeaseTable, id: LeaseId) -> Result<(), Failure> {
        self.allow_subject(table, Some(CommandRight::Acquire), Subject::Lease { id, is_remembered: false })
    }

    /// Whether the table has what `command` is about.
    fn knows(&self, table: &LeaseTable, command: &Command) -> bool {
        match command.subject() {
            Subject::Nothing | Subject::Keys(_) => true,
            Subject::Lease { id, .. } => table.keys_of_lease(self.owner_name(), id).is_some(),
            Subject::Holder { key, token } => table.keys_of_holder(key, token).is_some(),
        }
    }
}

fn on_keys(right: CommandRight) -> KeyRight {
    match right {
        CommandRight::Acquire => KeyRight::Acquire,
        CommandRight::Revoke => KeyRight::Revoke,
    }
}

#[cfg(test)]
mod tests {
    use ringfence_access::Proof;
    use ringfence_lease::Attachment;
    use ringfence_wire::{Revision, Token};

    use super::*;
    use crate::caller::Access;

    /// Where there are no rules, everybody has every right.
    #[test]
    fn what_no_client_may_give_is_denied_to_everybody() {
        let caller = Access::default().identify(Proof::default()).unwrap();
        let (lease_id, attachment) = (LeaseId::random(), Attachment(1));
        for command in [
            Command::Start { revision: Revision(1) },
            Command::Detach { lease_id, attachment },
            Command::TakeBack { lease_id, attachment },
        ] {
            assert!(!caller.may_whatever_is_held(&command), "{command:?}");
            let denied = caller.allow_command(&LeaseTable::new(), command).err();
            assert!(matches!(denied, Some(Failure::Unauthenticated(_))), "{denied:?}");
        }
        // No command combines these yet.
        let key = Key::new("a").unwrap();
        let holder = Subject::Holder { key: &key, token: Token(1) };
        for (right, subject) in [(Some(CommandRight::Revoke), Subject::Nothing), (None, holder)] {
            assert!(caller.allow_subject(&LeaseTable::new(), right, subject).is_err());
        }
    }
}
