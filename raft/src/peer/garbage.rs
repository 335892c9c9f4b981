//! Whatever arrives, or stands in a log, is an error or a value that can be written and read again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::NonZeroU32;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use ringfence_lease::{
    Acquire, Attachment, Command, Condition, Conditional, KeyChange, LeaseTable, Owner, Quota, Request,
    SUPPORTED, Value,
};
use ringfence_wal::Record;
use ringfence_wire::{Key, LeaseId, Metadata, Mode, PrincipalName, Revision, Token, Ttl, Wait};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;

use super::frame::{FrameReader, FrameWriter};
use super::handshake::{Channel, Hello, Program, Refusal, get, get_welcome, put};
use super::message::{
    Answer, Call, Order, get_numbered, put_append, put_appended, put_numbered, read_append, read_appended,
};
use super::transport::ByteReader;
use crate::consensus::{EncodedBatch, Member};
use crate::propose::batch::Batch;
use crate::storage::record::{LogRecord, put_meta, read_membership, read_meta};

/// The most bytes of a frame here.
const MAX: usize = 100;

/// A change of bytes: where it begins, how many bytes go, and which take their place.
type Edit = (Index, usize, Vec<u8>);

fn edit() -> impl Strategy<Value = Edit> {
    (any::<Index>(), 0..4_usize, vec(any::<u8>(), 0..4))
}

fn edited(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for (at, gone, new) in edits {
        let at = at.index(bytes.len() + 1);
        let end = bytes.len().min(at + gone);
        bytes.splice(at..end, new.iter().copied());
    }
    bytes
}

/// Messages as they are sent.
fn messages() -> Vec<Vec<u8>> {
    let encoded = |write: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        write(&mut out);
        out.to_vec()
    };
    let hello = Hello {
        group: 0,
        channel: Channel::Appends,
        cluster: Some(uuid::Uuid::from_u128(1)),
        from: 1,
        incarnation: uuid::Uuid::from_u128(2),
        to: 2,
        to_incarnation: None,
        member_as_of: Some((1, 2)),
        url: "https://10.0.0.1:7400".to_owned(),
    };
    let release = Command::Release { lease_id: LeaseId::from_u128(7).expect("it is not nil") };
    let calls = [
        Call::Propose(vec![release]),
        Call::ReadIndex,
        Call::Order(Order::Add { id: 4, peer: "10.0.0.4:7500".to_owned() }),
        Call::MirrorHas { keys: vec![Key::new("a").expect("a key")], revision: Revision(3) },
        Call::Upgrade { to: Some(2), check: true },
    ];
    let answers =
        [Answer::Refused { reason: "why".to_owned() }, Answer::MirrorHas(true), Answer::Difference(None)];
    let mut all =
        vec![encoded(&|out| put(out, &hello)), encoded(&|out| put(out, &Refusal { reason: "r".into() }))];
    all.extend(calls.iter().map(|call| encoded(&|out| put_numbered(out, 7, call))));
    all.extend(answers.iter().map(|answer| encoded(&|out| put_numbered(out, 7, answer))));
    all
}

/// A log entry with commands.
fn entry(rules: u8) -> Batch {
    let id = |id| LeaseId::from_u128(id).expect("it is not nil");
    let key = |key| Key::new(key).expect("a key");
    let acquire = Acquire {
        lease_id: id(7),
        claims: vec![(key("a"), Mode::Exclusive), (key("b"), Mode::Shared { limit: NonZeroU32::new(3) })],
        ttl: Ttl::default(),
        wait: Wait::default(),
        keep_place: true,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(1),
    };
    let changes = vec![set(id(9), b"value"), KeyChange::End { key: key("c"), token: Token(7) }];
    let conditional = Conditional::new(vec![(key("c"), Condition::Free)], changes).expect("they are few");
    let commands = vec![
        Command::Acquire(Box::new(acquire)),
        Command::Renew { lease_id: id(7), ttl: Some(Ttl::default()) },
        Command::Revoke { key: key("a"), token: Token(1) },
        Command::Release { lease_id: id(8) },
        Command::Conditional(Box::new(conditional)),
        Command::TakeBack { lease_id: id(9), attachment: Attachment(2) },
    ];
    let commands: Vec<_> = commands.into_iter().filter(|command| command.since() <= rules).collect();
    let owner = Owner { name: PrincipalName::new("ann").expect("a name"), quota: Quota::default() };
    let requests = vec![Request { by: Some(owner), commands: commands.clone() }, commands.into()];
    Batch { rules, at_ms: 300, max_bytes: 1 << 20, floor: Revision(9), requests }
}

/// One for each version of the rules, and one whose commands are large.
fn entries() -> Vec<Vec<u8>> {
    let all = (SUPPORTED.oldest..=SUPPORTED.newest).map(entry);
    let large = LeaseId::from_u128(3).map(|lease_id| set(lease_id, &[7; Value::MAX_BYTES]));
    let conditional = Conditional::new(Vec::new(), large.into_iter().collect()).expect("it is one");
    let requests = vec![vec![Command::Conditional(Box::new(conditional))].into()];
    let all = all.chain([Batch { requests, ..entry(SUPPORTED.newest) }]);
    all.map(|batch| batch.encode().0.to_vec()).collect()
}

fn set(lease_id: LeaseId, value: &[u8]) -> KeyChange {
    KeyChange::Acquire {
        key: Key::new("c").expect("a key"),
        lease_id,
        ttl: Ttl::default(),
        value: Value::new(value).expect("it is short"),
        holder: None,
        attachment: Attachment(2),
    }
}

/// Random bytes, or changed ones of `whole`.
fn garbage(whole: Vec<Vec<u8>>) -> impl Strategy<Value = Bytes> {
    let changed =
        (prop::sample::select(whole), vec(edit(), 0..4)).prop_map(|(whole, edits)| edited(whole, &edits));
    prop_oneof![vec(any::<u8>(), 0..120), changed].prop_map(Bytes::from)
}

fn reads_again<T: Debug + PartialEq + Serialize + DeserializeOwned>(body: &Bytes) {
    if let Ok(value) = get::<T>(body) {
        let mut out = BytesMut::new();
        put(&mut out, &value);
        assert_eq!(get::<T>(&out.freeze()).expect("it was written"), value);
    }
}

/// The frames in `pieces`, and whether an error ended them.
fn frames(pieces: Vec<Vec<u8>>) -> (Vec<(u8, Bytes)>, bool) {
    let nothing: ByteReader = Box::new(tokio::io::empty());
    let source =
        pieces.into_iter().fold(nothing, |before, piece| Box::new(before.chain(std::io::Cursor::new(piece))));
    let mut reader = FrameReader::new(source, MAX);
    let mut frames = Vec::new();
    loop {
        match reader.next().now_or_never().expect("all bytes are there") {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, false),
            Err(_) => return (frames, true),
        }
    }
}

fn written(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let (sink, mut source) = tokio::io::duplex(1 << 20);
    let mut writer = FrameWriter::new(Box::new(sink));
    for (kind, body) in frames {
        writer.put(*kind, |out| out.extend_from_slice(body));
    }
    writer.flush().now_or_never().expect("there is room").expect("it is open");
    drop(writer);
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).now_or_never().expect("all is there").expect("it is open");
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_read_the_same_however_they_arrive_and_no_change_makes_up_one(
        sent in vec((any::<u8>(), vec(any::<u8>(), 0..MAX)), 0..6),
        cuts in vec(any::<Index>(), 0..5),
        edits in vec(edit(), 1..4),
    ) {
        let whole = written(&sent);
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        ends.sort_unstable();
        let (mut pieces, mut begin) = (Vec::new(), 0);
        for end in ends.into_iter().chain([whole.len()]) {
            pieces.push(whole[begin..end].to_vec());
            begin = end;
        }
        let expected: Vec<_> = sent.into_iter().map(|(kind, body)| (kind, Bytes::from(body))).collect();
        prop_assert_eq!(frames(pieces), (expected.clone(), false));
        let (read, _) = frames(vec![edited(whole, &edits)]);
        // What follows a change of nothing, or a whole frame that is gone, is as it was.
        prop_assert!(read.iter().all(|frame| expected.contains(frame)), "{read:?}");
    }

    #[test]
    fn a_message_is_refused_or_can_be_written_again(body in garbage(messages())) {
        reads_again::<Hello>(&body);
        reads_again::<Refusal>(&body);
        let _ = get_welcome(&body);
        if let Ok((number, call)) = get_numbered::<Call>(body.clone()) {
            let _ = (call.channel(), call.speaker(), call.clone().within(&Program::of_this(SUPPORTED), Command::since));
            let mut out = BytesMut::new();
            put_numbered(&mut out, number, &call);
            prop_assert_eq!(get_numbered::<Call>(out.freeze()).expect("it was written"), (number, call));
        }
        if let Ok((number, answer)) = get_numbered::<Answer>(body) {
            let mut out = BytesMut::new();
            put_numbered(&mut out, number, &answer);
            prop_assert_eq!(get_numbered::<Answer>(out.freeze()).expect("it was written"), (number, answer));
        }
    }

    #[test]
    fn an_append_a_snapshot_or_a_record_is_refused_or_can_be_written_again(body in vec(any::<u8>(), 0..120), kind in 0..9_u8) {
        let body = Bytes::from(body);
        if let Ok(append) = read_append(body.clone()) {
            let mut out = BytesMut::new();
            put_append(&mut out, &append);
            prop_assert_eq!(format!("{:?}", read_append(out.freeze()).expect("it was written")), format!("{append:?}"));
        }
        if let Ok(appended) = read_appended(&mut body.clone()) {
            let mut out = BytesMut::new();
            put_appended(&mut out, &appended);
            prop_assert_eq!(read_appended(&mut out.freeze()).expect("it was written"), appended);
        }
        if let Ok(meta) = read_meta(&mut body.clone()) {
            let mut out = BytesMut::new();
            put_meta(&mut out, &meta);
            prop_assert_eq!(read_meta(&mut out.freeze()).expect("it was written"), meta);
        }
        let _ = LogRecord::read(Record { kind, payload: body });
    }

    #[test]
    fn a_membership_is_refused_or_can_be_used(
        configs in vec(vec(0..5_u64, 0..4), 0..3),
        nodes in vec((0..5_u64, "[a-z0-9.:]{0,8}"), 0..5),
    ) {
        let member = |peer| Member { peer, incarnation: uuid::Uuid::nil() };
        let nodes: BTreeMap<_, _> = nodes.into_iter().map(|(id, peer)| (id, member(peer))).collect();
        let bytes = postcard::to_stdvec(&(configs, nodes)).expect("it can be encoded");
        if let Ok(membership) = read_membership(&bytes) {
            let _ = (membership.voter_ids().count(), membership.learner_ids().count(), membership.to_string());
        }
    }

    #[test]
    fn an_entry_is_refused_or_can_be_applied(
        bytes in garbage(entries())
    ) {
        if let Ok(batch) = Batch::decode(&EncodedBatch(bytes), SUPPORTED) {
            // Requests of one owner that follow each other become one.
            let written = Batch::decode(&batch.encode(), SUPPORTED).expect("it was written");
            let again = Batch::decode(&written.encode(), SUPPORTED).expect("it was written");
            prop_assert_eq!(&again, &written);
            let [mut table, mut other] = [LeaseTable::default(), LeaseTable::default()];
            let [one, same] = [(&mut table, batch), (&mut other, written)]
                .map(|(table, batch)| batch.apply(table, &mut Vec::new()));
            prop_assert_eq!(one, same);
        }
    }
}
