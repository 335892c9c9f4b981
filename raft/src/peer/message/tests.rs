use openraft::vote::RaftLeaderId;

use super::*;
use openraft::EntryPayload as Payload;
use ringfence_lease::{Owner, Quota, Refusal, SUPPORTED};
use ringfence_wire::{Key, LeaseId, PrincipalName, RulesRange};

use crate::consensus::{EncodedBatch, Entry};

fn append() -> AppendEntriesRequest<Consensus> {
    AppendEntriesRequest {
        vote: Vote { leader_id: RaftLeaderId::new(3, 2), committed: true },
        prev_log_id: Some(log_id(2, 8)),
        entries: vec![
            Entry { log_id: log_id(3, 9), payload: Payload::Blank },
            Entry {
                log_id: log_id(3, 10),
                payload: Payload::Normal(EncodedBatch(Bytes::from_static(b"xy"))),
            },
        ],
        leader_commit: None,
    }
}

#[test]
fn an_append_reads_back_and_its_bytes_are_fixed() {
    let mut out = BytesMut::new();
    put_append(&mut out, &append());
    let mut golden = vec![3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1];
    golden.extend([1, 2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    golden.extend([1, 16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    golden.extend([2, 18, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, b'x', b'y']);
    assert_eq!(out[..], golden);
    let read = read_append(out.freeze()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", append()));
}

#[test]
fn a_malformed_append_is_an_error_and_no_panic() {
    let mut out = BytesMut::new();
    put_append(&mut out, &append());
    for cut in 0..out.len() {
        // A cut between two entries is a shorter append; every other one is detected.
        if let Ok(read) = read_append(out.clone().freeze().slice(..cut)) {
            assert!(cut == 35 || cut == 56, "cut at {cut}");
            assert!(read.entries.len() < 2);
        }
    }
}

#[test]
fn answers_to_appends_read_back() {
    for result in [
        Ok(None),
        Ok(Some(log_id(4, 5))),
        Err(StreamAppendError::Conflict(log_id(1, 2))),
        Err(StreamAppendError::HigherVote(Vote { leader_id: RaftLeaderId::new(7, 1), committed: false })),
    ] {
        let mut out = BytesMut::new();
        put_appended(&mut out, &result);
        assert_eq!(read_appended(&mut out.freeze()).unwrap(), result);
    }
}

fn proposed_by(name: &str) -> Call {
    let quota = Quota { leases: Some(9), ..Quota::default() };
    let by = Some(Owner { name: PrincipalName::new(name).unwrap(), quota });
    Call::ProposeBy(Request { by, commands: Vec::new() })
}

#[test]
fn a_program_gets_no_call_that_it_does_not_read() {
    let within = |call: &Call, frames| {
        call.clone().within(&Program { frames, ..Program::of_this(SUPPORTED) }, Command::since)
    };
    let proposed = proposed_by("ann");
    assert_eq!(within(&proposed, 2), Some(Call::Propose(Vec::new())));
    assert_eq!(within(&proposed, 3), Some(proposed.clone()));
    let of = Call::ProposeOf { asker: 5, supports: 4, request: Request::default() };
    assert_eq!(within(&of, 2), Some(Call::Propose(Vec::new())));
    assert_eq!(within(&of, 3), Some(Call::ProposeBy(Request::default())));
    assert_eq!(within(&of, 4), Some(of));
    let difference = Call::Difference { after: 1, upto: 2 };
    assert_eq!((within(&difference, 1), within(&difference, 2)), (None, Some(difference)));
}

#[test]
fn a_program_gets_no_command_that_it_does_not_read() {
    let start = Command::Start { revision: Revision(1) };
    let release = Command::Release { lease_id: LeaseId::from_u128(7).unwrap() };
    let since = |command: &Command| if matches!(command, Command::Release { .. }) { 3 } else { 1 };
    let within = |commands, newest| {
        let call = Call::ProposeOf { asker: 5, supports: 4, request: Request { by: None, commands } };
        call.within(&Program::of_this(RulesRange { oldest: 1, newest }), since).is_some()
    };
    let both = || vec![start.clone(), release.clone()];
    assert_eq!((within(both(), 2), within(both(), 3)), (false, true));
    assert!(within(vec![start.clone()], 1));
    let call = Call::ProposeBy(Request { by: None, commands: both() });
    assert_eq!(call.within(&Program::silent(), since), None);
}

/// Builds of different versions talk to each other: these bytes must not change under this preface version.
#[test]
fn the_bytes_of_a_call_are_fixed() {
    let ballot = Ballot {
        vote: VoteWord { term: 3, node: 1, committed: false },
        last: Some(LogIdWord { term: 2, index: 300 }),
        leadership_transfer: false,
    };
    let mut out = BytesMut::new();
    put_numbered(&mut out, 5, &Call::PreVote(ballot));
    assert_eq!(out[..], [5, 0, 0, 0, 0, 0, 0, 0, 1, 3, 1, 0, 1, 2, 0xac, 2, 0]);
    let (number, call) = get_numbered::<Call>(out.freeze()).unwrap();
    assert_eq!(number, 5);
    assert!(matches!(call, Call::PreVote(_)));
    let vote = VoteWord { term: 3, node: 1, committed: true };
    let mut out = BytesMut::new();
    put_numbered(&mut out, 6, &Call::Confirm { vote });
    assert_eq!(out[..], [6, 0, 0, 0, 0, 0, 0, 0, 9, 3, 1, 1]);
    out.clear();
    put_numbered(&mut out, 6, &Answer::Confirmed(true));
    assert_eq!(out[..], [6, 0, 0, 0, 0, 0, 0, 0, 11, 1]);
    for (call, golden) in [
        (Call::Upgrade { to: Some(2), check: true }, vec![10, 1, 2, 1]),
        (Call::Difference { after: 1, upto: 300 }, vec![11, 1, 0xac, 2]),
        (proposed_by("ann"), vec![12, 1, 3, b'a', b'n', b'n', 1, 9, 0, 0, 0]),
        (
            Call::ProposeOf { asker: 300, supports: 4, request: Request::default() },
            vec![13, 0xac, 2, 4, 0, 0],
        ),
    ] {
        out.clear();
        put(&mut out, &call);
        assert_eq!(out[..], golden);
    }
    for (answer, golden) in [
        (Answer::Upgraded(Upgraded { from: 1, to: 2 }), vec![12, 1, 2]),
        (
            Answer::Outcomes(vec![Outcome::Refused(Refusal::NotYet { rules: 3, since: 4 })]),
            vec![2, 1, 4, 12, 3, 4],
        ),
        (
            Answer::Outcomes(vec![
                Outcome::Changed(Vec::new()),
                Outcome::Refused(Refusal::Changed { key: Key::new("a").unwrap() }),
                Outcome::Refused(Refusal::OfDatabase { key: Key::new("a").unwrap() }),
            ]),
            vec![2, 3, 6, 0, 4, 13, 1, b'a', 4, 14, 1, b'a'],
        ),
        (Answer::Difference(Some(Difference { after: 1, sum: 300 })), vec![13, 1, 1, 0xac, 2]),
        (Answer::Full, vec![14]),
    ] {
        out.clear();
        put(&mut out, &answer);
        assert_eq!(out[..], golden);
    }
}
