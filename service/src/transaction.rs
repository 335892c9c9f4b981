//! The keys of a request of several steps.
//!
//! The request runs on a copy of the keys that it names. What it reads becomes the conditions of one command, and what it changes becomes the
//! changes of that command. So either all of it is done, on keys that are as the request found them, or nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_lease::{Attachment, Condition, Conditional, Found, KeyChange, Value};
use ringfence_wire::{Holder, Key, LeaseId, Token, Ttl};

/// The keys of a request, as it found them and as it leaves them.
#[derive(Clone, Debug)]
pub struct Transaction(BTreeMap<Key, KeyCopy>);

/// The keys that a request of several steps names. They are few, so that it costs the cluster little.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

/// A key of the request.
#[derive(Clone, Debug)]
struct KeyCopy {
    found: Found,
    /// How much of `found` the request has read.
    read: Read,
    now: Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Read {
    Nothing,
    /// Which lease holds the key.
    Holder,
    /// Also the deadline of the lease.
    Deadline,
    /// Also the time until the deadline.
    TimeLeft,
}

/// What the request leaves at a key.
#[derive(Clone, Debug)]
enum Now {
    AsFound,
    /// The lease that was found. The response tells its token.
    Told,
    /// The lease that was found, with a new time-to-live. With `None`, it would never end.
    Expires(Option<Ttl>),
    /// No lease: a lease that was found has ended.
    Free,
    /// A new lease: a lease that was found has ended. Without a time-to-live, the new one would never end.
    New(Value, Option<Ttl>),
}

/// What is at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// No lease, and no waiter: it can be acquired.
    Free,
    /// A lease of the caller with this value.
    Own(&'a Value),
    /// A lease of another principal or without a value, or a waiter. The caller cannot change it in a transaction.
    Taken,
}

/// Why a step of a transaction cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotDo {
    /// The request did not name the key.
    NotNamed,
    /// The key is [`Seen::Taken`].
    Taken,
    /// A lease of the caller holds the key.
    Held,
}

impl Keys {
    /// The most keys of a request.
    pub const MOST: usize = Conditional::MOST / 2;

    /// `None` if there are more than [`Self::MOST`].
    pub fn new(keys: Vec<Key>) -> Option<Self> {
        (keys.len() <= Self::MOST).then_some(Self(keys))
    }

    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.0.iter()
    }
}

impl Transaction {
    /// A transaction on these keys.
    pub fn new(keys: impl Iterator<Item = (Key, Found)>) -> Self {
        let copy = |found| KeyCopy { found, read: Read::Nothing, now: Now::AsFound };
        Self(keys.map(|(key, found)| (key, copy(found))).collect())
    }

    /// Notes the leases for which `is_told`: their clients know of them, so nobody takes them back.
    pub fn tell(&mut self, is_told: impl Fn(LeaseId) -> bool) {
        for copy in self.0.values_mut() {
            if let Found::Own { lease_id, is_untold, .. } = &mut copy.found {
                *is_untold = *is_untold && !is_told(*lease_id);
            }
        }
    }

    /// What is at `key`.
    ///
    /// # Errors
    /// The request did not name it.
    pub fn see(&mut self, key: &Key) -> Result<Seen<'_>, CannotDo> {
        Ok(self.copy(key, Read::Holder)?.see())
    }

    /// The token of the caller's lease with `value` at `key`, to tell the client. `None`: there is no such lease, or this request acquires
    /// it.
    ///
    /// # Errors
    /// The request did not name it.
    pub fn token(&mut self, key: &Key, value: &Value) -> Result<Option<Token>, CannotDo> {
        let copy = self.copy(key, Read::Holder)?;
        Ok(match (&mut copy.now, &copy.found) {
            (now, Found::Own { value: own, token, is_untold, .. })
                if own == value && !matches!(now, Now::Free | Now::New(..)) =>
            {
                if *is_untold && matches!(now, Now::AsFound) {
                    *now = Now::Told;
                }
                Some(*token)
            }
            _ => None,
        })
    }

    /// The token of the caller's lease at `key`, to tell this lease from a later one. The client must not get it: see [`Self::token`].
    ///
    /// # Errors
    /// The request did not name it.
    pub fn lease(&mut self, key: &Key) -> Result<Option<Token>, CannotDo> {
        let copy = self.copy(key, Read::Holder)?;
        Ok(match (&copy.now, &copy.found) {
            (Now::Free | Now::New(..), _) => None,
            (_, Found::Own { token, .. }) => Some(*token),
            _ => None,
        })
    }

    /// How long the lease at `key` lives unless it is renewed, in milliseconds. `None`: there is no lease, or its time is unknown, or it is
    /// [endless](Self::is_endless).
    ///
    /// # Errors
    /// The request did not name it.
    pub fn time_left_ms(&mut self, key: &Key) -> Result<Option<u64>, CannotDo> {
        let copy = self.copy(key, Read::TimeLeft)?;
        Ok(match (&copy.now, &copy.found) {
            (Now::Expires(ttl) | Now::New(_, ttl), _) => ttl.map(|ttl| ttl.ms().into()),
            (Now::AsFound | Now::Told, Found::Own { expires_in_ms, .. }) => Some(*expires_in_ms),
            (Now::AsFound | Now::Told, Found::Taken { expires_in_ms }) => *expires_in_ms,
            (Now::Free, _) | (_, Found::Free) => None,
        })
    }

    /// Whether the request has left the lease at `key` without a time-to-live.
    pub fn is_endless(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(KeyCopy::is_endless)
    }

    /// A key whose lease the request has left without a time-to-live. Such a request must not be done.
    pub fn endless(&self) -> Option<&Key> {
        self.0.iter().find(|(_, copy)| copy.is_endless()).map(|(key, _)| key)
    }

    /// Acquires `key` with a new lease. If this gives it no time-to-live, a later step must.
    ///
    /// # Errors
    /// It is not free, or the request did not name it.
    pub fn acquire(&mut self, key: &Key, value: Value, ttl: impl Into<Option<Ttl>>) -> Result<(), CannotDo> {
        let copy = self.copy(key, Read::Holder)?;
        match copy.see() {
            Seen::Free => copy.now = Now::New(value, ttl.into()),
            Seen::Own(_) => return Err(CannotDo::Held),
            Seen::Taken => return Err(CannotDo::Taken),
        }
        Ok(())
    }

    /// Gives the caller's lease at `key` this time-to-live from now on, which may be shorter than before. With `None`, a later step must
    /// give it one. Returns whether there is a lease.
    ///
    /// # Errors
    /// It is somebody else's, or has no value, or the request did not name the key.
    pub fn expire(&mut self, key: &Key, ttl: impl Into<Option<Ttl>>) -> Result<bool, CannotDo> {
        let ttl = ttl.into();
        // With the deadline as a condition, an extension that arrives late cannot undo a newer one.
        let copy = self.copy(key, Read::Deadline)?;
        match copy.see() {
            Seen::Own(_) => {}
            Seen::Free => return Ok(false),
            Seen::Taken => return Err(CannotDo::Taken),
        }
        match &mut copy.now {
            Now::New(_, new_ttl) => *new_ttl = ttl,
            now => *now = Now::Expires(ttl),
        }
        Ok(true)
    }

    /// Ends the caller's lease at `key`. Returns whether there is a lease.
    ///
    /// # Errors
    /// It is somebody else's, or has no value, or the request did not name the key.
    pub fn end(&mut self, key: &Key) -> Result<bool, CannotDo> {
        let copy = self.copy(key, Read::Holder)?;
        match copy.see() {
            Seen::Own(_) => copy.now = Now::Free,
            Seen::Free => return Ok(false),
            Seen::Taken => return Err(CannotDo::Taken),
        }
        Ok(true)
    }

    /// Whether the request acquires, extends or keeps a lease: it is of no use then unless its client gets the answer.
    pub fn needs_client(&self) -> bool {
        self.0.values().any(|copy| matches!(copy.now, Now::New(..) | Now::Expires(_) | Now::Told))
    }

    /// Whether the request has read how much time is left.
    pub(crate) fn reads_time(&self) -> bool {
        self.0.values().any(|copy| copy.read == Read::TimeLeft)
    }

    /// How long the first lease lives of the caller's that the request acquires, or whose time it sets or has read. What is due promises
    /// nothing.
    pub(crate) fn ends_in(&self) -> Option<Duration> {
        let left = |copy: &KeyCopy| match (&copy.now, &copy.found) {
            (Now::New(_, ttl) | Now::Expires(ttl), _) => ttl.map(|ttl| ttl.ms().into()),
            (Now::AsFound | Now::Told, Found::Own { expires_in_ms, .. }) if copy.read == Read::TimeLeft => {
                Some(*expires_in_ms).filter(|left| *left > 0)
            }
            _ => None,
        };
        self.0.values().filter_map(left).min().map(Duration::from_millis)
    }

    /// The command that makes the changes, if there are any. It leaves out leases that would be [endless](Self::endless). New leases show
    /// `holder`, and `new` gives each of them its id and attachment.
    pub fn into_command(
        self,
        holder: Option<&Holder>,
        mut new: impl FnMut() -> (LeaseId, Attachment),
    ) -> Option<Conditional> {
        let (mut conditions, mut changes) = (Vec::new(), Vec::new());
        for (key, copy) in self.0 {
            if let Some(condition) = copy.condition() {
                conditions.push((key.clone(), condition));
            }
            let found = match copy.found {
                Found::Own { token, .. } => Some(token),
                Found::Free | Found::Taken { .. } => None,
            };
            match (copy.now, found) {
                (Now::Told, Some(token)) => changes.push(KeyChange::Keep { key, token }),
                (Now::Expires(Some(ttl)), Some(token)) => changes.push(KeyChange::Expire { key, token, ttl }),
                (Now::Free, Some(token)) => changes.push(KeyChange::End { key, token }),
                (Now::New(value, Some(ttl)), found) => {
                    changes.extend(found.map(|token| KeyChange::End { key: key.clone(), token }));
                    let (lease_id, attachment) = new();
                    let holder = holder.cloned();
                    changes.push(KeyChange::Acquire { key, lease_id, ttl, value, holder, attachment });
                }
                _ => {}
            }
        }
        let are_few = "each of at most 32 keys has one condition and two changes";
        (!changes.is_empty()).then(|| Conditional::new(conditions, changes).expect(are_few))
    }

    fn copy(&mut self, key: &Key, read: Read) -> Result<&mut KeyCopy, CannotDo> {
        let copy = self.0.get_mut(key).ok_or(CannotDo::NotNamed)?;
        copy.read = copy.read.max(read);
        Ok(copy)
    }
}

impl KeyCopy {
    fn see(&self) -> Seen<'_> {
        match (&self.now, &self.found) {
            (Now::New(value, _), _) => Seen::Own(value),
            (Now::AsFound | Now::Told | Now::Expires(_), Found::Own { value, .. }) => Seen::Own(value),
            (Now::AsFound, Found::Taken { .. }) => Seen::Taken,
            _ => Seen::Free,
        }
    }

    fn is_endless(&self) -> bool {
        matches!(self.now, Now::New(_, None) | Now::Expires(None))
    }

    fn condition(&self) -> Option<Condition> {
        if self.read == Read::Nothing {
            return None;
        }
        Some(match self.found {
            Found::Free => Condition::Free,
            Found::Taken { .. } => Condition::Taken,
            Found::Own { token, until_ms, .. } => {
                Condition::Held { token, until_ms: (self.read >= Read::Deadline).then_some(until_ms) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_a_condition_and_what_was_not_is_none() {
        let key = |name| Key::new(name).expect("a key");
        let value = Value::new(b"v").expect("short");
        let own = Found::Own {
            token: Token(7),
            lease_id: LeaseId::random(),
            value: value.clone(),
            until_ms: 900,
            expires_in_ms: 400,
            is_untold: true,
        };
        let found = [(key("a"), own), (key("b"), Found::Free), (key("c"), Found::Free)];
        let mut keys = Transaction::new(found.into_iter());
        assert_eq!(keys.see(&key("a")), Ok(Seen::Own(&value)));
        keys.acquire(&key("b"), value, Ttl::default()).expect("it is free");
        let mut extended = keys.clone();
        let command = keys.into_command(None, || (LeaseId::random(), Attachment(1))).expect("it changes b");
        let held = |until_ms| Condition::Held { token: Token(7), until_ms };
        assert_eq!(command.conditions(), [(key("a"), held(None)), (key("b"), Condition::Free)]);
        assert_eq!(command.changes().len(), 1);

        assert_eq!(extended.expire(&key("a"), Ttl::default()), Ok(true));
        assert!(!extended.reads_time());
        let command =
            extended.into_command(None, || (LeaseId::random(), Attachment(1))).expect("it changes a");
        assert_eq!(command.conditions()[0].1, held(Some(900)), "a later extension is not undone");
    }
}
