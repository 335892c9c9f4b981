//! Who sent a request.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ringfence_access::{Principal, Proof, Watched};
use ringfence_lease::{Owner, Quota};
use ringfence_raft::Asker;
use ringfence_wire::PrincipalName;
use tokio::time::sleep;

use crate::failure::Failure;

/// How often requests that last look for new rules.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The rules of a node.
#[derive(Clone, Default)]
pub(crate) struct Access(Option<Arc<Watched>>);

/// Who sent a request.
#[derive(Clone)]
pub struct Caller {
    principal: Arc<Principal>,
    proof: Proof,
    /// Its host, if that is known.
    host: Option<IpAddr>,
    /// Of the rules that were asked, or older.
    version: u64,
    access: Access,
}

impl Access {
    pub(crate) fn new(rules: Option<Arc<Watched>>) -> Self {
        Self(rules)
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.0.is_some()
    }

    /// Who shows `proof`.
    pub(crate) fn identify(&self, proof: Proof) -> Result<Caller, Failure> {
        let Some(rules) = &self.0 else {
            let principal = Arc::clone(&UNRESTRICTED);
            return Ok(Caller { principal, proof, host: None, version: 0, access: self.clone() });
        };
        let version = rules.version();
        let rules = rules.loaded();
        let principal =
            rules.identify(&proof).map_err(|error| Failure::Unauthenticated(error.to_string()))?;
        Ok(Caller { principal: Arc::clone(principal), proof, host: None, version, access: self.clone() })
    }
}

static UNRESTRICTED: LazyLock<Arc<Principal>> = LazyLock::new(|| Arc::new(Principal::unrestricted()));
static ANONYMOUS: LazyLock<PrincipalName> = LazyLock::new(PrincipalName::anonymous);
static NOBODY: LazyLock<Arc<Principal>> = LazyLock::new(Arc::default);

impl Caller {
    /// Whoever sent a request that anybody may send.
    pub(crate) fn anybody() -> Self {
        Self {
            principal: Arc::clone(&NOBODY),
            proof: Proof::default(),
            host: None,
            version: 0,
            access: Access::default(),
        }
    }

    /// The same caller, who is at `host`.
    #[must_use]
    pub(crate) fn at(self, host: Option<IpAddr>) -> Self {
        Self { host, ..self }
    }

    /// In whose turns its commands are proposed: those of the principal, or else of the host.
    pub(crate) fn asker(&self) -> Asker {
        match (self.name(), &self.host) {
            (Some(name), _) => Asker::of(name),
            (None, Some(host)) => Asker::of(host),
            (None, None) => Asker::UNNAMED,
        }
    }

    /// The name of the principal. `None`: anonymous.
    pub fn name(&self) -> Option<&PrincipalName> {
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

    /// What it may do.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Why it may not do something: for `why`, which lacks who.
    pub(crate) fn denied(&self, why: &str) -> Failure {
        match self.name() {
            Some(name) => Failure::Forbidden(format!("{why}, which {name} does not have")),
            None => Failure::Unauthenticated(format!(
                "{why}, and the request has no credential or certificate of a principal"
            )),
        }
    }

    /// The same caller under the rules in use now, if they are new.
    pub(crate) fn renewed(&self) -> Option<Result<Self, Failure>> {
        let newest = self.access.0.as_ref()?.version();
        (newest != self.version).then(|| {
            self.access.identify(self.proof.clone()).map(|caller| Self { host: self.host, ..caller })
        })
    }

    /// Goes on under the rules in use now; `true` if they are new.
    ///
    /// # Errors
    /// What it shows is nobody's now, or another principal's.
    pub(crate) fn renew(&mut self) -> Result<bool, Failure> {
        let Some(caller) = self.renewed().transpose()? else { return Ok(false) };
        // What was begun belongs to the principal that it was.
        if caller.name() != self.name() {
            return Err(caller.denied("this was begun as another principal"));
        }
        *self = caller;
        Ok(true)
    }

    /// Resolves when new rules end what the caller does: they no longer allow it, as `check` says, or take what the caller shows
    /// for another principal, or for nobody.
    pub(crate) async fn until_denied<T>(mut self, check: impl Fn(&Self) -> Result<T, Failure>) -> Failure {
        if self.access.0.is_none() {
            return std::future::pending().await;
        }
        loop {
            sleep(CHECK_INTERVAL).await;
            match self.renew() {
                Ok(false) => {}
                Err(failure) => return failure,
                Ok(true) => {
                    if let Err(failure) = check(&self) {
                        return failure;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_access::{Digest, Rules};

    use super::*;

    #[test]
    fn commands_are_proposed_in_the_turns_of_a_principal_wherever_it_is_or_of_a_host() {
        let digest = Digest::of(b"secret");
        let rules = format!("[principals.ann]\ncredentials = [\"{digest}\"]\nallow = []\n");
        let proof = Proof { credential: Some(digest), ..Proof::default() };
        let rules = Rules::parse(&rules).unwrap();
        let principal = rules.identify(&proof).unwrap();
        let [here, there] = ["127.0.0.1", "127.0.0.2"].map(|host| host.parse::<IpAddr>().ok());
        let anonymous = |host| Access::default().identify(Proof::default()).unwrap().at(host).asker();
        assert_eq!(anonymous(here), anonymous(here));
        assert_ne!(anonymous(here), anonymous(there));
        let ann = |host| Caller { principal: Arc::clone(principal), ..Caller::anybody() }.at(host).asker();
        assert_eq!(ann(here), ann(there));
        assert_ne!(ann(here), anonymous(here));
    }
}
