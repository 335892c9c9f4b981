//! Small histories, made by hand, for the tests of checkers.

use ringfence_wire::{
    HolderView, Key, KeyView, LeaseId, Metadata, Mode, ModeName, Revision, Role, Token, WaiterView, WantedKey,
};

use crate::check::plain::grant;
use crate::history::{Call, Change, ChangeName, ChangedKey, Conclusion, History, Invocation, Sight};

/// The only key of most scenes.
pub(crate) fn key() -> Key {
    Key::new("k").unwrap()
}

pub(crate) fn lease(n: u64) -> LeaseId {
    LeaseId::from_u128(n.into()).unwrap()
}

/// A call; [`numbered`] gives it its id, and a process of its own.
pub(crate) fn call(sent_us: u64, ended_us: u64, invocation: Invocation, conclusion: Conclusion) -> Call {
    Call { id: 0, process: 0, node: Some(1), batch: None, sent_us, ended_us, invocation, conclusion }
}

/// A history of `calls`, in the order they were sent, with their ids.
pub(crate) fn numbered(calls: impl IntoIterator<Item = Call>) -> History {
    let mut calls: Vec<Call> = calls.into_iter().collect();
    calls.sort_by_key(|call| call.sent_us);
    for (id, call) in (0..).zip(&mut calls) {
        call.id = id;
        call.process = u32::try_from(id).unwrap();
    }
    History { calls, ..History::default() }
}

pub(crate) fn acquire(n: u64) -> Invocation {
    let keys = vec![WantedKey { key: key(), mode: Mode::Exclusive }];
    Invocation::Acquire { lease: lease(n), keys, ttl_ms: 1_000, wait_ms: 0, keep_place: false }
}

pub(crate) fn look(n: u64) -> Invocation {
    Invocation::Lease { lease: lease(n), local: false }
}

pub(crate) fn granted(n: u64, token: u64, fence: u64) -> Conclusion {
    let mut grant = grant(lease(n), &key(), Token(token), 1_000, Some(1_000));
    grant.keys[0].fence = Token(fence);
    Conclusion::granted(grant, false)
}

pub(crate) fn view(revision: u64, fence: u64, holders: &[u64], waiters: usize) -> KeyView {
    let holders = holders.iter().map(|&token| (Token(token), Mode::Exclusive));
    let waiter = WaiterView { holder: None, mode: ModeName::Exclusive, waited_ms: 0, by: None };
    KeyView { waiters: vec![waiter; waiters], ..seen(key(), Revision(revision), Token(fence), holders) }
}

/// A key with these holders, for which nobody waits.
pub(crate) fn seen(
    key: Key,
    revision: Revision,
    fence: Token,
    holders: impl IntoIterator<Item = (Token, Mode)>,
) -> KeyView {
    let holder = |(token, mode): (Token, Mode)| HolderView {
        token,
        holder: None,
        mode: mode.name(),
        limit: mode.limit(),
        ttl_ms: 1_000,
        expires_in_ms: Some(1_000),
        metadata: Metadata::default(),
        by: None,
        other_keys: Vec::new(),
        more_keys: 0,
    };
    let holders = holders.into_iter().map(holder).collect();
    KeyView { key, fence, revision, holders, more_holders: 0, waiters: Vec::new(), more_waiters: 0 }
}

/// What node 1 shows, which leads.
pub(crate) fn sight(ended_us: u64, revision: u64, at_ms: u64) -> Sight {
    Sight {
        sent_us: ended_us - 1,
        ended_us,
        node: 1,
        role: Role::Leader,
        term: 1,
        leader: Some(1),
        applied_index: None,
        revision: Revision(revision),
        at_ms,
    }
}

/// A change of a lease on [`key`]; its token is `token`, or none.
pub(crate) fn change(revision: u64, n: u64, change: ChangeName, token: Option<u64>, fence: u64) -> Change {
    Change {
        index: revision,
        at_ms: 0,
        revision: Revision(revision),
        lease_id: lease(n),
        change,
        reason: None,
        token: token.map(Token),
        keys: vec![ChangedKey { key: key(), mode: Mode::Exclusive, fence: Token(fence) }],
    }
}

/// An accepted read of the register of [`key`], with a fence that is the token.
pub(crate) fn read(sent_us: u64, ended_us: u64, token: u64, value: u64) -> Call {
    let invocation = Invocation::Read { key: key(), token: Token(token), fence: Token(token) };
    call(sent_us, ended_us, invocation, Conclusion::Register { value })
}

/// An accepted write of the register of [`key`], with a fence that is the token.
pub(crate) fn write(sent_us: u64, ended_us: u64, token: u64, over: u64, value: u64) -> Call {
    let invocation = Invocation::Write { key: key(), token: Token(token), fence: Token(token), over, value };
    call(sent_us, ended_us, invocation, Conclusion::Register { value })
}

/// The same call, rejected by a guard with the number `high`.
pub(crate) fn rejected(call: Call, high: u64) -> Call {
    Call { conclusion: Conclusion::Stale { high: Token(high) }, ..call }
}

/// The same call without an answer.
pub(crate) fn unknown(call: Call) -> Call {
    Call { conclusion: Conclusion::Unknown { why: "no answer".to_owned() }, ..call }
}
