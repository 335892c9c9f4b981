use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_access::{Principal, Proof, Watched};
use ringfence_lease::Attachment;
use ringfence_raft::{Asker, Handle};
use ringfence_room::{Bound, Room};
use ringfence_wire::LeaseId;
use tokio::sync::watch;

use crate::caller::{Access, Caller};
use crate::failure::Failure;
use crate::request_log::RequestLog;
use crate::told::Told;
use crate::usage::{Counted, Usages};

/// How many requests may be taken back at a time: one asker alone as many as a node has connections by default, which may all close at
/// once, and half as many more.
const TAKE_BACKS: Bound = Bound::of(65_536);

/// What the service needs besides the table.
pub struct Options {
    /// The access rules. `None`: everybody may do everything.
    pub access: Option<Arc<Watched>>,
    /// How long an acquire waits for the mirror to have the fences of its grant; `None`: it does not wait.
    pub mirror_timeout: Option<Duration>,
    /// Turns `true` when the process is about to stop. Then requests that wait are answered: with their place if they keep it,
    /// else as indeterminate. Either way the client asks again at another node, which finds the place in the queue.
    pub draining: watch::Receiver<bool>,
    /// `true` while the thread that decides hangs. Others see that.
    pub blocked: watch::Receiver<bool>,
    /// A number that no other start of a node draws: acquires are numbered from here, to tell those of one lease apart.
    pub first_attachment: u64,
    /// A request that takes this long, not counting the wait it asked for, is logged.
    pub slow_request: Duration,
}

/// What all doors of a node offer: the replicated table, for callers with rights and limits.
pub struct Service {
    pub(crate) handle: Handle,
    pub(crate) draining: watch::Receiver<bool>,
    blocked: watch::Receiver<bool>,
    pub(crate) mirror_timeout: Option<Duration>,
    access: Access,
    pub(crate) usages: Arc<Usages>,
    /// For the tasks that take leases back.
    pub(crate) take_backs: Arc<Room<Asker>>,
    pub(crate) log: RequestLog,
    first_attachment: u64,
    attachments: AtomicU64,
    /// Grants of which the clients know.
    told: Told,
}

impl Service {
    /// The service of a node, over the table behind `handle`.
    pub fn new(handle: Handle, options: Options) -> Self {
        Self {
            handle,
            draining: options.draining,
            blocked: options.blocked,
            mirror_timeout: options.mirror_timeout,
            access: Access::new(options.access),
            usages: Arc::default(),
            take_backs: Room::new(TAKE_BACKS),
            log: RequestLog::new(options.slow_request),
            first_attachment: options.first_attachment,
            attachments: AtomicU64::new(options.first_attachment),
            told: Told::default(),
        }
    }

    /// Turns `true` when the process is about to stop.
    pub fn draining(&self) -> &watch::Receiver<bool> {
        &self.draining
    }

    /// Checks that what this node is asked would be decided soon. Until then nothing of a request is sent on.
    pub(crate) fn check_blocked(&self) -> Result<(), Failure> {
        if *self.blocked.borrow() { Err(Failure::Blocked) } else { Ok(()) }
    }

    /// Completes once this node decides nothing.
    pub(crate) async fn until_blocked(&self) {
        if self.blocked.clone().wait_for(|blocked| *blocked).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether there are access rules. Without them, nobody has to show anything.
    pub fn has_rules(&self) -> bool {
        self.access.has_rules()
    }

    /// Who shows `proof`.
    ///
    /// # Errors
    /// It shows nobody, or two principals.
    pub fn caller(&self, proof: Proof) -> Result<Caller, Failure> {
        self.access.identify(proof)
    }

    /// Counts `bytes` that `caller` reads.
    pub(crate) fn count_read(&self, caller: &Caller, bytes: usize) {
        self.usages.count_read(caller.principal(), bytes);
    }

    /// Checks that other reads of `caller` have not used up what is allowed.
    pub(crate) fn check_reads(&self, caller: &Caller) -> Result<(), Failure> {
        self.usages.check_reads(caller.principal())
    }

    /// A place for a watch of `caller`.
    pub(crate) fn watch_place(&self, caller: &Caller) -> Result<Counted, Failure> {
        self.usages.watch_place(caller.principal())
    }

    /// Takes a line of the audit log for something that was refused to `principal`: how many were left out before it, if it is
    /// logged.
    pub fn take_refusal_line(&self, principal: &Principal) -> Option<u64> {
        self.usages.take_refusal_line(principal)
    }

    /// A new number for one request to acquire.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment(self.attachments.fetch_add(1, Ordering::Relaxed))
    }

    /// The id of a lease that the client does not choose, and the number of the request for it. No other start of a node draws either.
    pub(crate) fn new_lease(&self) -> (LeaseId, Attachment) {
        let attachment = self.attachment();
        (self.lease_id(attachment.0), attachment)
    }

    fn lease_id(&self, number: u64) -> LeaseId {
        let bits = u128::from(self.first_attachment) << 64 | u128::from(number);
        LeaseId::from_u128(bits | 1 << 127).expect("a bit is set")
    }

    /// Notes that the response with this grant was sent.
    pub(crate) fn is_sent(&self, lease_id: LeaseId) {
        self.number_of(lease_id).into_iter().for_each(|number| self.told.add(number));
    }

    /// Whether the client knows of the lease, so that nobody will take it back.
    pub(crate) fn is_told(&self, lease_id: LeaseId) -> bool {
        self.number_of(lease_id).is_some_and(|number| self.told.contains(number))
    }

    /// The number of a lease, if its id was drawn by this node in this start.
    pub fn number_of(&self, lease_id: LeaseId) -> Option<u64> {
        let number = lease_id.to_u128() as u64;
        (self.lease_id(number) == lease_id).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_of_one_asker_are_taken_back_as_a_node_has_connections() {
        assert!(TAKE_BACKS.allows(16_384, 16_384));
        assert!(TAKE_BACKS.allows(16_384 + 1, 1));
    }
}
