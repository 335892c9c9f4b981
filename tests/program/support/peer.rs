//! What callers of the peer port say, by hand.

use ringfence_harness::Node;

pub(crate) const PREFACE: &[u8] = b"RINGPEER\x01\x00";
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSAL: u8 = 3;

/// Eight bytes each.
pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A frame, with its length and checksum.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let body = [&[kind], body].concat();
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(crc32c::crc32c(&body).to_le_bytes());
    frame.extend(body);
    frame
}

/// The contents of a node's `NODE` file.
pub(crate) struct Identity {
    pub(crate) node: u64,
    pub(crate) incarnation: u128,
    pub(crate) cluster: u128,
    pub(crate) url: String,
}

impl Identity {
    pub(crate) fn of(node: &Node) -> Self {
        let text = std::fs::read_to_string(node.data().join("NODE")).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u128::from_str_radix(&line.trim().replace('-', ""), 16).unwrap()
        };
        Self {
            node: node.id(),
            incarnation: value("incarnation"),
            cluster: value("cluster"),
            url: node.url(),
        }
    }
}

/// A hello, in wire order: varints, `Option`s after 0 or 1, texts and UUIDs after their length.
#[derive(Clone)]
pub(crate) struct Hello {
    pub(crate) group: u8,
    pub(crate) channel: u8,
    pub(crate) cluster: Option<u128>,
    pub(crate) from: u64,
    pub(crate) incarnation: u128,
    pub(crate) to: u64,
    pub(crate) to_incarnation: Option<u128>,
    pub(crate) member_as_of: Option<(u8, u8)>,
    pub(crate) url: String,
}

impl Hello {
    pub(crate) fn new(channel: u8, from: &Identity, to: &Identity) -> Self {
        Self {
            group: 0,
            channel,
            cluster: Some(from.cluster),
            from: from.node,
            incarnation: from.incarnation,
            to: to.node,
            to_incarnation: Some(to.incarnation),
            member_as_of: None,
            url: from.url.clone(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let uuid = |out: &mut Vec<u8>, id: u128| {
            out.push(16);
            out.extend(id.to_be_bytes());
        };
        let option = |out: &mut Vec<u8>, id: Option<u128>| {
            out.push(id.is_some().into());
            if let Some(id) = id {
                uuid(out, id);
            }
        };
        let mut out = vec![self.group, self.channel];
        option(&mut out, self.cluster);
        // All of these are below 128, so one byte each.
        out.push(self.from as u8);
        uuid(&mut out, self.incarnation);
        out.push(self.to as u8);
        option(&mut out, self.to_incarnation);
        out.push(self.member_as_of.is_some().into());
        out.extend(self.member_as_of.map(|(term, index)| [term, index]).into_iter().flatten());
        out.push(self.url.len() as u8);
        out.extend(self.url.as_bytes());
        out
    }
}
