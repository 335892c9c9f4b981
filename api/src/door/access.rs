//! What the sender of a request may do.
//!
//! Each route states a [`Right`], which is checked before the body is read. What a request does with keys is checked again for
//! these keys: the door proposes only [`Allowed`] commands and shows the table only to who is allowed to see something, and
//! only [`Caller`] makes these.
//!
//! Leases belong to the principal that acquired them: to others, their ids are unknown. A lease id is a secret, and still no
//! permission: calls about a lease need the right on its keys. This node's table has these. If it does not know the lease, it
//! may lag, so it catches up first.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use ringfence_access::{ClusterRight, Digest, KeyRight, Principal, Proof, Watched};
use ringfence_http::Remote;
use ringfence_lease::{Attachment, Command, LeaseState, LeaseTable, Owner, Quota, Refusal};
use ringfence_raft::Unanswered;
use ringfence_wire::{Key, LeaseId, PrincipalName, ProblemKind};
use tokio::time::sleep;

use super::Door;
use crate::problems::Failed;
use crate::request::query::Consistency;

/// How often requests that last look for new rules.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// What a route requires of who calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing, and who it is does not matter.
    Public,
    /// Nothing, but the response depends on who it is.
    Identity,
    /// This, on the keys of the request.
    OnKeys(KeyRight),
    /// This.
    OnCluster(ClusterRight),
}

/// The rules of a node.
#[derive(Clone, Default)]
pub(crate) struct Access(Option<Arc<Watched>>);

/// Who sent a request.
#[derive(Clone)]
pub(crate) struct Caller {
    principal: Arc<Principal>,
    proof: Proof,
    /// Of the rules that were asked, or older.
    version: u64,
    access: Access,
}

/// Something that its caller may do, or see.
pub(crate) struct Allowed<T>(T);

impl<T> Allowed<T> {
    pub(super) fn get(&self) -> &T {
        &self.0
    }

    pub(super) fn into_inner(self) -> T {
        self.0
    }
}

impl Allowed<Command> {
    /// The lease and the attachment of an acquire.
    pub(crate) fn attachment(&self) -> Option<(LeaseId, Attachment)> {
        match &self.0 {
            Command::Acquire(acquire) => Some((acquire.lease_id, acquire.attachment)),
            _ => None,
        }
    }
}

impl Access {
    pub(crate) fn new(rules: Option<Arc<Watched>>) -> Self {
        Self(rules)
    }

    /// Who sends a request with `headers` over a connection from `remote`.
    pub(super) fn caller(&self, headers: &HeaderMap, remote: &Remote) -> Result<Caller, Failed> {
        let mut proof = Proof::default();
        if self.0.is_some() {
            proof =
                Proof { credential: credential(headers, remote)?, certificate: Arc::clone(&remote.names) };
        }
        self.identify(proof)
    }

    fn identify(&self, proof: Proof) -> Result<Caller, Failed> {
        let Some(rules) = &self.0 else {
            let principal = Arc::clone(&UNRESTRICTED);
            return Ok(Caller { principal, proof, version: 0, access: self.clone() });
        };
        let version = rules.version();
        let rules = rules.current();
        let principal = rules.identify(&proof).map_err(|error| unauthenticated(error.to_string()))?;
        Ok(Caller { principal: Arc::clone(principal), proof, version, access: self.clone() })
    }
}

static UNRESTRICTED: LazyLock<Arc<Principal>> = LazyLock::new(|| Arc::new(Principal::unrestricted()));
static ANONYMOUS: LazyLock<PrincipalName> = LazyLock::new(PrincipalName::anonymous);
static NOBODY: LazyLock<Arc<Principal>> = LazyLock::new(Arc::default);

/// The digest of the credential in `headers`.
fn credential(headers: &HeaderMap, remote: &Remote) -> Result<Option<Digest>, Failed> {
    let mut all = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let credential = match (all.next(), all.next()) {
        (None, _) => return Ok(None),
        (Some(header), None) => {
            header.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
        }
        (Some(_), Some(_)) => None,
    };
    let Some((_, credential)) = credential else {
        return Err(unauthenticated("the header Authorization must be `Bearer` and a credential"));
    };
    if !remote.is_encrypted {
        return Err(unauthenticated(
            "a credential over a plain connection is not accepted, and may have been read by others: use https, and replace it",
        ));
    }
    Ok(Some(Digest::of(credential)))
}

fn unauthenticated(detail: impl Into<String>) -> Failed {
    Failed::new(ProblemKind::Unauthenticated, detail)
}

impl Caller {
    /// Whoever sent a request to a public route.
    pub(crate) fn anybody() -> Self {
        Self {
            principal: Arc::clone(&NOBODY),
            proof: Proof::default(),
            version: 0,
            access: Access::default(),
        }
    }

    /// The name of the principal. `None`: anonymous.
    pub(crate) fn name(&self) -> Option<&PrincipalName> {
        self.principal.name()
    }

    /// Whose its leases are. `None`: nobody's.
    pub(crate) fn owner(&self) -> Option<Owner> {
        let limits = self.principal.limits();
        let quota = Quota {
            leases: limits.leases.map(Into::into),
            waiting: limits.waiting.map(Into::into),
            bytes: limits.lease_bytes.map(|limit| limit.get().into()),
        };
        self.owner_name().map(|name| Owner { name: name.clone(), quota })
    }

    /// Whose its leases are. The anonymous have theirs in common. Without rules, leases are nobody's.
    pub(crate) fn owner_name(&self) -> Option<&PrincipalName> {
        self.access.0.as_ref().map(|_| self.name().unwrap_or(&ANONYMOUS))
    }

    pub(crate) fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Checks what a route requires, as far as that does not depend on the keys of the request.
    pub(crate) fn check(&self, right: Right) -> Result<(), Failed> {
        let (is_allowed, right) = match right {
            Right::Public | Right::Identity => return Ok(()),
            Right::OnKeys(right) => (self.principal.may_somewhere(right), right.to_string()),
            Right::OnCluster(right) => (self.principal.may_with_cluster(right), right.to_string()),
        };
        if is_allowed { Ok(()) } else { Err(self.denied(&format!("this requires the right `{right}`"))) }
    }

    fn denied(&self, why: &str) -> Failed {
        match self.name() {
            Some(name) => Failed::new(ProblemKind::Forbidden, format!("{why}, which {name} does not have")),
            None => unauthenticated(format!(
                "{why}, and the request has no credential or certificate of a principal"
            )),
        }
    }

    fn denied_on_keys(&self, right: KeyRight, of: &str) -> Failed {
        self.denied(&format!("this requires the right `{right}` on {of}"))
    }

    /// To see something of all `keys` that `right` allows.
    pub(crate) fn allow<'a>(
        &self,
        right: KeyRight,
        mut keys: impl Iterator<Item = &'a Key>,
    ) -> Result<Allowed<KeyRight>, Failed> {
        match keys.find(|key| !self.principal.may(right, key)) {
            None => Ok(Allowed(right)),
            Some(key) => Err(self.denied_on_keys(right, &format!("the key {key}"))),
        }
    }

    /// To see all keys that start with `prefix`. They must be within one subtree that the caller may read: nothing is filtered.
    pub(crate) fn allow_under(&self, prefix: &str) -> Result<Allowed<KeyRight>, Failed> {
        match self.principal.may_under(KeyRight::Read, prefix) {
            true => Ok(Allowed(KeyRight::Read)),
            false => {
                Err(self.denied_on_keys(KeyRight::Read, &format!("all keys with the prefix {prefix:?}")))
            }
        }
    }

    /// Whether responses may name holders of `keys`.
    pub(crate) fn sees_holders<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> bool {
        self.allow(KeyRight::Read, keys).is_ok()
    }

    /// What of `commands` the caller may do.
    pub(crate) async fn allow_commands(
        &self,
        door: &Door,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Allowed<Command>, Failed>>, Unanswered> {
        // Looking at the table holds up those who apply to it.
        if commands.iter().all(|command| self.may_whatever_is_held(command)) {
            return Ok(commands.into_iter().map(|command| Ok(Allowed(command))).collect());
        }
        let allow = |table: &LeaseTable, commands: Vec<Command>| {
            commands.into_iter().map(|command| self.allow_command(table, command)).collect()
        };
        let at_once = door.handle.view(|table| {
            let knows_all = commands.iter().all(|command| self.knows(table, command));
            if knows_all { Ok(allow(table, commands)) } else { Err(commands) }
        });
        match at_once {
            Ok(allowed) => Ok(allowed),
            Err(commands) => {
                door.handle.linearize().await?;
                Ok(door.handle.view(|table| allow(table, commands)))
            }
        }
    }

    /// Whether the caller may do this whichever keys the lease has that `command` names.
    fn may_whatever_is_held(&self, command: &Command) -> bool {
        match command {
            Command::Acquire(acquire) => {
                acquire.claims.iter().all(|(key, _)| self.principal.may(KeyRight::Acquire, key))
            }
            Command::Renew { .. } | Command::Release { .. } => {
                self.principal.may_under(KeyRight::Acquire, "")
            }
            Command::Revoke { .. } | Command::Start { .. } | Command::Detach { .. } => false,
        }
    }

    fn allow_command(&self, table: &LeaseTable, command: Command) -> Result<Allowed<Command>, Failed> {
        match &command {
            Command::Acquire(acquire) => {
                self.allow(KeyRight::Acquire, acquire.claims.iter().map(|(key, _)| key))?;
            }
            Command::Renew { lease_id, .. } => self.allow_lease(table, *lease_id)?,
            // The release of a lease that is not there yet keeps a late acquire out.
            Command::Release { lease_id } if table.keys_of_lease(self.owner_name(), *lease_id).is_none() => {}
            Command::Release { lease_id } => self.allow_lease(table, *lease_id)?,
            Command::Revoke { key, token } => {
                self.allow(KeyRight::Revoke, std::iter::once(key))?;
                // A lease that is granted later may have keys that the caller has no right on.
                let mut keys = table.keys_of_holder(key, *token).ok_or(Refusal::NotLive)?;
                if !keys.all(|key| self.principal.may(KeyRight::Revoke, key)) {
                    return Err(self.denied_on_keys(KeyRight::Revoke, "all keys of the lease"));
                }
            }
            Command::Start { .. } | Command::Detach { .. } => {
                return Err(self.denied("no request may do this"));
            }
        }
        Ok(Allowed(command))
    }

    /// Whether the caller may see and change the lease. Who lost a right must not keep its leases by renewing them.
    fn allow_lease(&self, table: &LeaseTable, id: LeaseId) -> Result<(), Failed> {
        let Some(mut keys) = table.keys_of_lease(self.owner_name(), id) else {
            // It has ended, or was never acquired.
            return Err(table.lease(self.owner_name(), id, None).err().unwrap_or(Refusal::Unknown).into());
        };
        match keys.all(|key| self.principal.may(KeyRight::Acquire, key)) {
            true => Ok(()),
            false => Err(self.denied_on_keys(KeyRight::Acquire, "all keys of the lease")),
        }
    }

    /// The lease with this id.
    pub(crate) async fn lease(
        &self,
        door: &Door,
        id: LeaseId,
        consistency: Consistency,
    ) -> Result<LeaseState, Failed> {
        let now_ms = door.now_ms(consistency).await?;
        door.handle.view(|table| {
            self.allow_lease(table, id)?;
            Ok(table.lease(self.owner_name(), id, now_ms)?)
        })
    }

    /// Whether the table has what `command` is about.
    fn knows(&self, table: &LeaseTable, command: &Command) -> bool {
        match command {
            Command::Renew { lease_id, .. } | Command::Release { lease_id } => {
                table.keys_of_lease(self.owner_name(), *lease_id).is_some()
            }
            Command::Revoke { key, token } => table.keys_of_holder(key, *token).is_some(),
            Command::Start { .. } | Command::Acquire(_) | Command::Detach { .. } => true,
        }
    }

    /// The same caller under the rules in use now, if they are new.
    pub(crate) fn renewed(&self) -> Option<Result<Self, Failed>> {
        let newest = self.access.0.as_ref()?.version();
        (newest != self.version).then(|| self.access.identify(self.proof.clone()))
    }

    /// Resolves when new rules no longer let the caller do what it does, which `check` tells.
    pub(crate) async fn until_denied<T>(mut self, check: impl Fn(&Self) -> Result<T, Failed>) -> Failed {
        if self.access.0.is_none() {
            return std::future::pending().await;
        }
        loop {
            sleep(CHECK_INTERVAL).await;
            match self.renewed() {
                None => {}
                Some(Err(failed)) => return failed,
                Some(Ok(caller)) => {
                    // What it waits for belongs to the principal that it was.
                    if caller.name() != self.name() {
                        return caller.denied("this was begun as another principal");
                    }
                    self = caller;
                    if let Err(failed) = check(&self) {
                        return failed;
                    }
                }
            }
        }
    }
}
