//! A second implementation of the rules, as simple as possible: two lists, and every question is answered by a scan. It
//! shares no code with the table except the types of commands and outcomes.

use ringfence_wire::{
    EndReason, Grant, GrantState, GrantedKey, HolderView, Key, KeyView, LeaseId, Mode, PrincipalName,
    Revision, Token, Ttl, WaiterView, Waiting, WaitingState,
};

use crate::limits::Limits;
use crate::{
    Acquire, Attachment, Blocking, Change, Command, Event, LeaseState, Outcome, Owner, Quota, Refusal,
    Request, Value,
};

mod conditional;

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) at: u64,
    pub(super) revision: u64,
    pub(super) leases: Vec<Lease>,
    /// In the order of their ends: when, whose, which, and the refusal for a later acquire.
    pub(super) ended: Vec<(u64, By, LeaseId, Refusal)>,
    pub(super) limits: Limits,
    /// How much more this entry may do to let waiters in.
    pub(super) grants_left: usize,
    /// How many conditionals were refused after their first changes had succeeded in a trial.
    pub(super) undone: usize,
}

/// Whose a lease is.
type By = Option<PrincipalName>;

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) by: By,
    pub(super) first: Acquire,
    value: Option<Value>,
    pub(super) live: bool,
    /// Its token or its place.
    number: u64,
    pub(super) deadline: u64,
    since: u64,
    ttl: Ttl,
    /// Its acquire requests, and until when each keeps the place.
    requests: Vec<(Attachment, u64)>,
    /// The keys that a waiter is admitted to.
    admitted: Vec<Key>,
}

/// One mode, or all shared and no more than the smallest limit.
pub(super) fn compatible(modes: &[Mode]) -> bool {
    let limits = modes.iter().filter_map(|mode| mode.limit()).map(|limit| limit.get() as usize);
    let all_shared = modes.iter().all(|mode| matches!(mode, Mode::Shared { .. }));
    modes.len() <= 1 || all_shared && modes.len() <= limits.min().unwrap_or(usize::MAX)
}

impl Lease {
    pub(super) fn mode_on(&self, key: &Key) -> Option<Mode> {
        self.first.claims.iter().find(|claim| claim.0 == *key).map(|claim| claim.1)
    }
}

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        Self { at: 0, revision: 0, leases: Vec::new(), ended: Vec::new(), limits, grants_left: 0, undone: 0 }
    }

    pub(super) fn apply(&mut self, at: u64, requests: Vec<Request>, events: &mut Vec<Event>) -> Vec<Outcome> {
        self.at = self.at.max(at);
        for _ in 0..self.limits.ends + requests.iter().map(|request| request.commands.len()).sum::<usize>() {
            let due = (0..self.ended.len()).filter(|index| self.at > self.ended[*index].0 + 60_000);
            if let Some(first) = due.min_by_key(|index| (self.ended[*index].0, self.ended[*index].1.clone()))
            {
                self.ended.remove(first);
            }
        }
        self.grants_left = self.limits.grants;
        let mut ends_left = self.limits.ends;
        while ends_left > 0 {
            let due = self.leases.iter().filter(|lease| self.at > lease.deadline);
            let first = due.min_by_key(|lease| (lease.live, lease.deadline, lease.number)).cloned();
            let Some(lease) = first else { break };
            ends_left = ends_left.saturating_sub(lease.first.claims.len());
            self.end(&lease, lease.live.then_some(EndReason::Expired), events);
        }
        self.let_in(events);
        let mut outcomes = Vec::new();
        for Request { by, commands } in requests {
            outcomes.extend(commands.into_iter().map(|command| self.run(by.as_ref(), command, events)));
        }
        outcomes
    }

    pub(super) fn raise(&mut self, floor: u64) {
        if self.revision > 0 && self.revision < floor && floor < 1 << 52 {
            self.revision = floor;
        }
    }

    fn run(&mut self, owner: Option<&Owner>, command: Command, events: &mut Vec<Event>) -> Outcome {
        let by = owner.map(|owner| owner.name.clone());
        match command {
            Command::Start { revision } => {
                if self.revision == 0 && revision.0 < 1 << 53 {
                    self.revision = revision.0;
                }
                Outcome::Done
            }
            Command::Acquire(acquire) => self.acquire(owner, *acquire, None, events),
            Command::Conditional(conditional) => self.conditional(owner, &conditional, events),
            Command::Renew { lease_id, ttl } => {
                let now = self.at;
                let Some(known) = self.find(&by, lease_id) else {
                    return Outcome::Refused(self.how_it_ended(&by, lease_id).unwrap_or(Refusal::Unknown));
                };
                let lease = self.stored(&known);
                if !lease.live {
                    return Outcome::Refused(Refusal::NotGranted);
                }
                if let Some(ttl) = ttl {
                    lease.ttl = ttl;
                }
                if now + u64::from(lease.ttl.ms()) > lease.deadline {
                    lease.deadline = now + u64::from(lease.ttl.ms());
                }
                lease.requests.clear();
                let lease = lease.clone();
                Outcome::Standing(Box::new(self.grant(&lease, Some(now))))
            }
            Command::Release { lease_id } => {
                if let Some(lease) = self.find(&by, lease_id) {
                    self.end(&lease, Some(EndReason::Released), events);
                    return Outcome::Done;
                }
                match self.how_it_ended(&by, lease_id) {
                    Some(Refusal::Gone(reason)) if reason != EndReason::Released => {
                        Outcome::Refused(Refusal::Gone(reason))
                    }
                    Some(_) => Outcome::Done,
                    None => {
                        self.remember(by, lease_id, Refusal::Gone(EndReason::Released));
                        Outcome::Done
                    }
                }
            }
            Command::Revoke { key, token } => {
                match self.holders(&key).into_iter().find(|l| l.number == token.0).cloned() {
                    Some(lease) => {
                        self.end(&lease, Some(EndReason::Revoked), events);
                        Outcome::Done
                    }
                    None => Outcome::Refused(Refusal::NotLive),
                }
            }
            Command::TakeBack { lease_id, .. }
                if self.find(&by, lease_id).is_none() && self.how_it_ended(&by, lease_id).is_none() =>
            {
                self.remember(by, lease_id, Refusal::Gone(EndReason::Abandoned));
                Outcome::Done
            }
            Command::Detach { lease_id, attachment } | Command::TakeBack { lease_id, attachment } => {
                let now = self.at;
                let known = self.find(&by, lease_id);
                let stood =
                    known.filter(|lease| lease.requests.iter().any(|request| request.0 == attachment));
                if let Some(known) = stood {
                    let lease = self.stored(&known);
                    lease.requests.retain(|request| request.0 != attachment);
                    match lease.requests.iter().map(|request| request.1).filter(|until| *until >= now).max() {
                        Some(until) => lease.deadline = until,
                        None => {
                            let lease = lease.clone();
                            self.end(&lease, Some(EndReason::Abandoned), events);
                        }
                    }
                }
                Outcome::Done
            }
        }
    }

    fn acquire(
        &mut self,
        owner: Option<&Owner>,
        acquire: Acquire,
        value: Option<Value>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let by = owner.map(|owner| owner.name.clone());
        let quota = owner.map_or(Quota::default(), |owner| owner.quota);
        let try_once = acquire.wait.ms() == 0 && !acquire.keep_place;
        let deadline = self.at + u64::from(acquire.wait.ms()) + if acquire.keep_place { 5_000 } else { 0 };
        let id = acquire.lease_id;
        if let Some(known) = self.find(&by, id) {
            let mut keys: Vec<_> = acquire.claims.iter().map(|claim| &claim.0).collect();
            let mut known_keys: Vec<_> = known.first.claims.iter().map(|claim| &claim.0).collect();
            keys.sort();
            known_keys.sort();
            if keys != known_keys {
                return Outcome::Refused(Refusal::Mismatch);
            }
            if !known.live && self.at > known.deadline {
                self.end(&known, None, events);
                return Outcome::Refused(Refusal::WaitTimeout);
            }
            let now = self.at;
            let lease = self.stored(&known);
            if known.live {
                // Any of its requests may be answered.
                lease.requests.clear();
                return Outcome::Standing(Box::new(self.grant(&known, Some(self.at))));
            }
            let is_kept = lease.deadline > deadline;
            let deadline = deadline + if is_kept { 5_000 } else { 0 };
            lease.requests.retain(|request| request.1 + 20_000 >= now);
            match lease.requests.iter_mut().find(|request| request.0 == acquire.attachment) {
                Some(request) => request.1 = request.1.max(deadline),
                None => lease.requests.push((acquire.attachment, deadline)),
            }
            lease.deadline =
                lease.requests.iter().map(|request| request.1).max().expect("one was added just now");
            let waiting = self.waiting(&known);
            return if is_kept { Outcome::Kept(waiting) } else { Outcome::Waiting(waiting) };
        }
        if let Some(refusal) = self.how_it_ended(&by, id) {
            return Outcome::Refused(refusal);
        }
        let own = |waits: bool| {
            self.leases.iter().filter(|lease| lease.by == by && (!waits || !lease.live)).count()
        };
        // Holders have three bytes here, and metadata one entry of four.
        let bytes = |acquire: &Acquire, value: &Option<Value>, waits: bool| {
            let queue = |mode| {
                if waits {
                    640
                } else if mode == Mode::Exclusive {
                    0
                } else {
                    320
                }
            };
            let keys: u64 =
                acquire.claims.iter().map(|(key, mode)| 80 + key.as_str().len() as u64 + queue(*mode)).sum();
            let metadata = if acquire.metadata.is_empty() { 0 } else { 768 + 160 + 4 };
            160 + keys
                + metadata
                + value.as_ref().map_or(0, |value| 160 + value.as_bytes().len() as u64)
                + if acquire.holder.is_some() { 35 } else { 0 }
                + if waits { 1_024 } else { 0 }
        };
        let mine = self.leases.iter().filter(|lease| lease.by == by);
        let mine: u64 = mine.map(|lease| bytes(&lease.first, &lease.value, !lease.live)).sum();
        let is_heavy = |waits| quota.bytes.filter(|most| mine + bytes(&acquire, &value, waits) > *most);
        let (heavy_live, heavy_waiting) = (is_heavy(false), is_heavy(true));
        let is_full = |quota: Option<u32>, count: usize| quota.is_some_and(|most| count >= most as usize);
        let (has_most, most_wait) = (is_full(quota.leases, own(false)), is_full(quota.waiting, own(true)));
        let mut lease = Lease {
            by: by.clone(),
            live: false,
            number: self.revision + 1,
            deadline,
            since: self.at,
            ttl: acquire.ttl,
            requests: vec![(acquire.attachment, deadline)],
            first: acquire,
            value,
            admitted: Vec::new(),
        };
        let claimed = lease.first.claims.iter().map(|claim| claim.0.clone());
        lease.admitted = claimed.filter(|key| self.fits(&lease, key) && self.all_admitted(key)).collect();
        let too_many = Outcome::Refused(Refusal::TooManyLeases { most: quota.leases.unwrap_or(0) });
        if lease.admitted.len() == lease.first.claims.len() {
            if has_most {
                return too_many;
            }
            if let Some(most) = heavy_live {
                return Outcome::Refused(Refusal::TooManyBytes { most });
            }
            self.leases.push(lease.clone());
            self.make_live(&lease, events);
            let lease = self.find(&by, id).expect("just granted");
            return Outcome::Granted(Box::new(self.grant(&lease, Some(self.at))));
        }
        let longest = lease.first.claims.iter().map(|claim| self.queue(&claim.0).len()).max().expect("a key");
        if try_once {
            let mut holders = Vec::new();
            for (key, _) in lease.first.claims.iter().filter(|claim| !lease.admitted.contains(&claim.0)) {
                for holder in self.holders(key) {
                    let mode = holder.mode_on(key).expect("it holds the key");
                    holders.push(Blocking {
                        key: key.clone(),
                        token: Token(holder.number),
                        holder: holder.first.holder.clone(),
                        mode: mode.name(),
                        limit: mode.limit(),
                        expires_in_ms: holder.deadline.saturating_sub(self.at),
                    });
                }
            }
            holders.truncate(16);
            return Outcome::Refused(Refusal::Held { holders, waiters: longest as u64 });
        }
        if longest >= self.limits.queue {
            return Outcome::Refused(Refusal::Overloaded);
        }
        if has_most {
            return too_many;
        }
        if most_wait {
            return Outcome::Refused(Refusal::TooManyWaiting { most: quota.waiting.unwrap_or(0) });
        }
        if let Some(most) = heavy_waiting {
            return Outcome::Refused(Refusal::TooManyBytes { most });
        }
        self.revision += 1;
        events.push(self.event(&lease, Change::Queued));
        self.leases.push(lease);
        Outcome::Waiting(self.waiting(&self.find(&by, id).expect("just queued")))
    }

    /// Ends a lease, or takes a waiter out, and lets waiters in.
    fn end(&mut self, lease: &Lease, reason: Option<EndReason>, events: &mut Vec<Event>) {
        self.leases.retain(|other| other.number != lease.number);
        let refusal = reason.map_or(Refusal::WaitTimeout, Refusal::Gone);
        self.remember(lease.by.clone(), lease.first.lease_id, refusal);
        self.revision += 1;
        let change = match reason {
            Some(reason) if lease.live => Change::Ended(reason),
            _ => Change::Left(reason),
        };
        events.push(self.event(lease, change));
        self.let_in(events);
    }

    /// Admits waiters key by key, the earliest first, as many as one entry may. A waiter that is admitted to all its keys is
    /// granted unless its wait is over.
    fn let_in(&mut self, events: &mut Vec<Event>) {
        while self.grants_left > 0
            && let Some((known, key)) = self.first_to_admit()
        {
            let at = self.at;
            let lease = self.stored(&known);
            lease.admitted.push(key);
            let keys = lease.first.claims.len();
            let is_granted = lease.admitted.len() == keys && lease.deadline >= at;
            self.grants_left -= 1;
            if is_granted {
                self.grants_left = self.grants_left.saturating_sub(keys);
                self.make_live(&known, events);
            }
        }
    }

    /// The earliest waiter that fits a key and is not admitted to it.
    pub(super) fn first_to_admit(&self) -> Option<(Lease, Key)> {
        let wanted =
            |lease: &Lease| lease.first.claims.iter().map(|claim| claim.0.clone()).collect::<Vec<_>>();
        let waiting = self.leases.iter().filter(|lease| !lease.live);
        let each = waiting.flat_map(|lease| wanted(lease).into_iter().map(move |key| (lease, key)));
        let to_admit = each.filter(|(lease, key)| !lease.admitted.contains(key) && self.fits(lease, key));
        let first = to_admit.min_by_key(|(lease, key)| (lease.number, key.clone()));
        first.map(|(lease, key)| (lease.clone(), key))
    }

    /// A waiter that is admitted to all its keys, and whose wait is not over.
    pub(super) fn overlooked(&self) -> Option<LeaseId> {
        let waiting = self.leases.iter().filter(|lease| !lease.live && lease.deadline >= self.at);
        let fitting = |lease: &&Lease| lease.admitted.len() == lease.first.claims.len();
        waiting.filter(fitting).map(|lease| lease.first.lease_id).next()
    }

    fn all_admitted(&self, key: &Key) -> bool {
        self.queue(key).iter().all(|waiter| waiter.admitted.contains(key))
    }

    fn make_live(&mut self, known: &Lease, events: &mut Vec<Event>) {
        self.revision += 1;
        let (revision, at) = (self.revision, self.at);
        let lease = self.stored(known);
        // If there are several requests, any of them may be answered. The one that it is granted to at once stays for good.
        lease.requests.retain(|request| request.1 + 20_000 >= at);
        if lease.requests.len() > 1 {
            lease.requests.clear();
        }
        lease.requests.iter_mut().for_each(|request| request.1 = u64::MAX);
        lease.live = true;
        lease.number = revision;
        lease.deadline = at + u64::from(lease.ttl.ms());
        let lease = lease.clone();
        events.push(self.event(&lease, Change::Granted));
    }

    fn remember(&mut self, by: By, id: LeaseId, refusal: Refusal) {
        self.ended.push((self.at, by.clone(), id, refusal));
        if self.ended.iter().filter(|ended| ended.1 == by).count() > self.limits.remembered {
            let first = self.ended.iter().position(|ended| ended.1 == by).expect("one was added");
            self.ended.remove(first);
        }
    }

    /// Whether a waiter, or a newcomer, is compatible with the live leases on `key` and the earlier waiters there.
    pub(super) fn fits(&self, lease: &Lease, key: &Key) -> bool {
        let earlier = self.leases.iter().filter(|other| other.live || other.number < lease.number);
        let mut modes: Vec<Mode> = earlier.filter_map(|other| other.mode_on(key)).collect();
        modes.push(lease.mode_on(key).expect("it is one of its keys"));
        compatible(&modes)
    }

    fn on(&self, key: &Key, live: bool) -> Vec<&Lease> {
        let mut leases: Vec<&Lease> = self.leases.iter().collect();
        leases.retain(|lease| lease.live == live && lease.mode_on(key).is_some());
        leases.sort_by_key(|lease| lease.number);
        leases
    }

    fn holders(&self, key: &Key) -> Vec<&Lease> {
        self.on(key, true)
    }

    fn queue(&self, key: &Key) -> Vec<&Lease> {
        self.on(key, false)
    }

    /// The owner of the lease that `by` calls `id`: itself if it has or had such a lease, and nobody otherwise.
    fn whose(&self, by: &By, id: LeaseId) -> By {
        let had = self.leases.iter().any(|lease| lease.by == *by && lease.first.lease_id == id)
            || self.ended.iter().any(|ended| ended.1 == *by && ended.2 == id);
        if had { by.clone() } else { None }
    }

    fn find(&self, by: &By, id: LeaseId) -> Option<Lease> {
        let whose = self.whose(by, id);
        self.leases.iter().find(|lease| lease.by == whose && lease.first.lease_id == id).cloned()
    }

    fn stored(&mut self, known: &Lease) -> &mut Lease {
        let mut leases = self.leases.iter_mut();
        let is_it = |lease: &&mut Lease| lease.by == known.by && lease.first.lease_id == known.first.lease_id;
        leases.find(is_it).expect("it is known")
    }

    fn how_it_ended(&self, by: &By, id: LeaseId) -> Option<Refusal> {
        let whose = self.whose(by, id);
        self.ended.iter().find(|ended| ended.1 == whose && ended.2 == id).map(|ended| ended.3.clone())
    }

    fn fence(&self, key: &Key) -> Token {
        Token(self.holders(key).first().map_or(self.revision + 1, |oldest| oldest.number))
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        let left_over = self.first_to_admit().map(|_| self.at);
        left_over.or_else(|| self.leases.iter().map(|lease| lease.deadline + 1).min())
    }

    pub(super) fn lease(&self, by: &By, id: LeaseId, now: Option<u64>) -> Result<LeaseState, Refusal> {
        match self.find(by, id) {
            Some(lease) if lease.live => Ok(LeaseState::Granted(self.grant(&lease, now))),
            Some(lease) => Ok(LeaseState::Waiting(self.waiting(&lease))),
            None => Err(self.how_it_ended(by, id).unwrap_or(Refusal::Unknown)),
        }
    }

    pub(super) fn key(&self, key: &Key, now: Option<u64>) -> KeyView {
        let holder = |lease: &&Lease| HolderView {
            token: Token(lease.number),
            holder: lease.first.holder.clone(),
            mode: lease.mode_on(key).expect("it holds the key").name(),
            limit: lease.mode_on(key).expect("it holds the key").limit(),
            ttl_ms: lease.ttl.ms(),
            expires_in_ms: now.map(|now| lease.deadline.saturating_sub(now)),
            metadata: lease.first.metadata.clone(),
            by: lease.by.clone(),
            other_keys: Vec::new(),
            more_keys: 0,
        };
        let waiter = |lease: &&Lease| WaiterView {
            holder: lease.first.holder.clone(),
            mode: lease.mode_on(key).expect("it waits for the key").name(),
            waited_ms: now.unwrap_or(self.at) - lease.since,
            by: lease.by.clone(),
        };
        KeyView {
            key: key.clone(),
            fence: self.fence(key),
            revision: Revision(self.revision),
            holders: self.holders(key).iter().map(holder).collect(),
            waiters: self.queue(key).iter().map(waiter).collect(),
            more_holders: 0,
            more_waiters: 0,
        }
    }

    fn grant(&self, lease: &Lease, now: Option<u64>) -> Grant {
        let key = |claim: &(Key, Mode)| GrantedKey {
            key: claim.0.clone(),
            mode: claim.1.name(),
            limit: claim.1.limit(),
            fence: self.fence(&claim.0),
        };
        Grant {
            lease_id: lease.first.lease_id,
            state: GrantState::Granted,
            token: Token(lease.number),
            holder: lease.first.holder.clone(),
            ttl_ms: lease.ttl.ms(),
            expires_in_ms: now.map(|now| lease.deadline.saturating_sub(now)),
            keys: lease.first.claims.iter().map(key).collect(),
        }
    }

    fn waiting(&self, lease: &Lease) -> Waiting {
        let earlier = |key: &Key| self.queue(key).iter().filter(|other| other.number < lease.number).count();
        let ahead = lease.first.claims.iter().map(|claim| earlier(&claim.0)).max().expect("a key");
        Waiting { lease_id: lease.first.lease_id, state: WaitingState::Waiting, ahead: ahead.min(100) as u64 }
    }

    fn event(&self, lease: &Lease, change: Change) -> Event {
        Event {
            revision: Revision(self.revision),
            lease_id: lease.first.lease_id,
            by: lease.by.clone(),
            change,
            token: (lease.live).then_some(Token(lease.number)),
            keys: lease
                .first
                .claims
                .iter()
                .map(|(key, mode)| (key.clone(), *mode, self.fence(key)))
                .collect(),
            holder: lease.first.holder.clone(),
        }
    }
}
