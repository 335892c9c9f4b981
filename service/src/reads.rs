use ringfence_access::KeyRight;
use ringfence_lease::{LeaseState, LeaseTable, Sieve};
use ringfence_wire::{Check, HolderView, Key, KeyView, LeaseId, Revision, Verdict, VerdictName};

use crate::caller::Caller;
use crate::failure::Failure;
use crate::rights::Allowed;
use crate::service::Service;

/// The most other keys that a view of one key shows for each lease. A view has up to 100 leases.
const MAX_OTHER_KEYS: usize = 8;

/// A key that a search passes over, or a holder or waiter that it compares, counts as a read of this many bytes.
const BYTES_OF_A_LOOK: usize = 32;

/// The consistency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The cluster's state at some instant during the call.
    Linearizable,
    /// This node's state, which may lag.
    Local,
}

/// A page of a list of keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its keys, in order.
    pub keys: Vec<KeyView>,
    /// The last key that was looked at, if there may be more.
    pub last: Option<Key>,
    /// The revision of the table that it shows.
    pub revision: Revision,
}

impl Service {
    /// The lease that `caller` calls `id`.
    ///
    /// # Errors
    /// There is none, it has ended, the caller lacks the right on its keys, or no leader answers.
    pub async fn lease(
        &self,
        caller: &Caller,
        id: LeaseId,
        consistency: Consistency,
    ) -> Result<LeaseState, Failure> {
        let now_ms = self.now_ms(consistency).await?;
        self.handle.try_view(|table| {
            caller.allow_lease(table, id)?;
            Ok(table.lease(caller.owner_name(), id, now_ms)?)
        })?
    }

    /// Who holds `key`, and who waits for it.
    ///
    /// # Errors
    /// The caller has read more than its limits allow, or no leader answers.
    pub async fn key(
        &self,
        caller: &Caller,
        key: Allowed<&Key>,
        consistency: Consistency,
    ) -> Result<KeyView, Failure> {
        let now_ms = self.now_ms(consistency).await?;
        self.check_reads(caller)?;
        Ok(self.handle.try_view(|table| {
            let mut view = table.key(key.get(), now_ms);
            for holder in &mut view.holders {
                add_other_keys(holder, table, key.get(), caller);
            }
            view
        })?)
    }

    /// At most `limit` of the keys that start with `prefix`, stay in `sieve`, and come after `after`. An empty page need not be the last.
    ///
    /// # Errors
    /// The caller has read more than its limits allow, or no leader answers.
    pub async fn keys(
        &self,
        caller: &Caller,
        prefix: Allowed<&str>,
        sieve: Sieve<'_>,
        after: Option<&Key>,
        limit: usize,
        consistency: Consistency,
    ) -> Result<Page, Failure> {
        let now_ms = self.now_ms(consistency).await?;
        self.check_reads(caller)?;
        let (page, looks) = self.handle.try_view(|table| {
            let (keys, last, looks) =
                table.keys_of_sieve(prefix.get(), sieve, after.map(Key::as_str), limit, now_ms);
            (Page { keys, last, revision: table.revision() }, looks)
        })?;
        // Keys that are shown count with their bytes.
        self.count_read(caller, looks.saturating_sub(page.keys.len()) * BYTES_OF_A_LOOK);
        Ok(page)
    }

    /// What is known of each of these tokens.
    ///
    /// # Errors
    /// The caller lacks the right to validate on one of the keys, or no leader answers.
    pub async fn validate(
        &self,
        caller: &Caller,
        checks: &[Check],
        consistency: Consistency,
    ) -> Result<Vec<Verdict>, Failure> {
        caller.allow(KeyRight::Validate, checks.iter().map(|check| &check.key))?;
        self.now_ms(consistency).await?;
        let verdicts =
            |table: &LeaseTable| checks.iter().map(|check| verdict(table, check, consistency)).collect();
        Ok(self.handle.try_view(verdicts)?)
    }

    /// Waits until this node's table is as new as the cluster's.
    pub(crate) async fn catch_up(&self) -> Result<(), Failure> {
        self.now_ms(Consistency::Linearizable).await?;
        Ok(())
    }

    /// Waits until this node's table may be read. Returns the cluster time of the read, `None` for a local one.
    async fn now_ms(&self, consistency: Consistency) -> Result<Option<u64>, Failure> {
        match consistency {
            Consistency::Linearizable => {
                self.check_blocked()?;
                Ok(Some(self.handle.linearize().await?))
            }
            Consistency::Local => Ok(None),
        }
    }
}

/// Adds which other keys the lease of `holder` has: they end with it.
fn add_other_keys(holder: &mut HolderView, table: &LeaseTable, key: &Key, caller: &Caller) {
    let keys = || table.keys_of_holder(key, holder.token).into_iter().flatten().filter(|other| *other != key);
    let may_read = |other: &&Key| caller.principal().may(KeyRight::Read, other);
    let (all, shown) = (keys().count(), keys().filter(may_read).take(MAX_OTHER_KEYS).cloned().collect());
    holder.other_keys = shown;
    holder.more_keys = (all - holder.other_keys.len()) as u64;
}

fn verdict(table: &LeaseTable, check: &Check, consistency: Consistency) -> Verdict {
    let fence = table.fence(&check.key);
    let is_live = table.is_live(&check.key, check.token);
    let verdict = match consistency {
        Consistency::Linearizable if is_live => VerdictName::Live,
        // The table has every grant up to its revision. A token up to there that is not live has ended, or will never be granted;
        // this covers every token below the fence. One beyond may be granted next.
        _ if !is_live && check.token.0 <= table.revision().0 => VerdictName::Stale,
        _ => VerdictName::Unknown,
    };
    Verdict { verdict, fence }
}
