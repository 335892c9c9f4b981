use ringfence_wire::{Access, AllowedKeys, Key, Limits, PrincipalName};

use crate::pattern::Pattern;
use crate::rights::{ClusterRight, KeyRight};

/// Somebody who may call a cluster, and what they may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// `None`: anonymous.
    pub(crate) name: Option<PrincipalName>,
    pub(crate) allowed: Vec<Allowed>,
    pub(crate) cluster: Vec<ClusterRight>,
    pub(crate) limits: Limits,
}

/// Rights on keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) keys: Pattern,
    pub(crate) may: Vec<KeyRight>,
}

impl Principal {
    /// Anybody, where there are no rules.
    pub fn unrestricted() -> Self {
        let allowed = vec![Allowed { keys: Pattern::All, may: KeyRight::ALL.to_vec() }];
        Self { name: None, allowed, cluster: ClusterRight::ALL.to_vec(), limits: Limits::default() }
    }

    /// The name in the file. `None`: anonymous.
    pub fn name(&self) -> Option<&PrincipalName> {
        self.name.as_ref()
    }

    /// How much it may use.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether it has a right on `key`.
    pub fn may(&self, right: KeyRight, key: &Key) -> bool {
        self.with(right).any(|keys| keys.covers(key.as_str()))
    }

    /// Whether one rule gives it a right on all keys that start with `prefix`.
    pub fn may_under(&self, right: KeyRight, prefix: &str) -> bool {
        self.with(right).any(|keys| keys.covers_all_under(prefix))
    }

    /// Whether it has a right on any keys.
    pub fn may_somewhere(&self, right: KeyRight) -> bool {
        self.with(right).next().is_some()
    }

    /// Whether it has a right on the cluster.
    pub fn may_with_cluster(&self, right: ClusterRight) -> bool {
        self.cluster.iter().any(|own| own.includes(right))
    }

    /// As the API shows it.
    pub fn view(&self) -> Access {
        let allow = self.allowed.iter().map(|allowed| AllowedKeys {
            keys: allowed.keys.to_string(),
            may: allowed.may.iter().map(ToString::to_string).collect(),
        });
        Access {
            principal: self.name.clone(),
            allow: allow.collect(),
            cluster: self.cluster.iter().map(ToString::to_string).collect(),
            limits: self.limits,
        }
    }

    fn with(&self, right: KeyRight) -> impl Iterator<Item = &Pattern> {
        let has = move |allowed: &&Allowed| allowed.may.iter().any(|own| own.includes(right));
        self.allowed.iter().filter(has).map(|allowed| &allowed.keys)
    }
}
