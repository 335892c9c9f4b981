//! Faults, as the story of a run tells them.

use std::fmt;

use super::What;
use crate::messages::channel_name;

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = |power: bool| if power { "loses its power" } else { "is killed" };
        match *self {
            Self::Kill { node, power, down } => write!(f, "node {node} {}, for {down} ms", machine(power)),
            Self::Fuse { node, operations, power, down } => {
                let what = machine(power);
                write!(f, "node {node} {what} after {operations} more operations of its disk, for {down} ms")
            }
            Self::Stop { node, down } => write!(f, "node {node} stops in order, for {down} ms"),
            Self::Freeze { node, lasts } => write!(f, "node {node} is frozen for {lasts} ms"),
            Self::Cut { from, to, lasts } => {
                write!(f, "nothing comes from node {from} to node {to} for {lasts} ms")
            }
            Self::Isolate { node, lasts } => write!(f, "node {node} is cut off for {lasts} ms"),
            Self::Deaf { node, lasts } => write!(f, "nobody can call node {node} for {lasts} ms"),
            Self::Late { node, lasts, .. } => {
                write!(f, "node {node} is cut off for {lasts} ms, but answers to its appends arrive late")
            }
            Self::Hold { from, to, channel, replies, lasts } => {
                let what = match replies {
                    None => "messages",
                    Some(true) => "replies",
                    Some(false) => "calls",
                };
                let channel = channel.map_or_else(|| "all channels".to_owned(), channel_name);
                write!(f, "{what} from node {from} to node {to} on {channel} are held for {lasts} ms")
            }
            Self::Reset { one, other } => write!(f, "the connections of nodes {one} and {other} break"),
            Self::Clog { node, over, lasts } => {
                write!(f, "no message of more than {over} bytes comes from node {node} for {lasts} ms")
            }
            Self::Tear { node, lasts } => write!(f, "no snapshot of node {node} arrives for {lasts} ms"),
            Self::Narrow { from, to, rate, lasts } => {
                write!(f, "{rate} bytes per second come from node {from} to node {to}, for {lasts} ms")
            }
            Self::Slow { least, most, lasts } => {
                write!(f, "messages take {least} to {most} ms, for {lasts} ms")
            }
            Self::SlowDisks { least, most, lasts } => {
                write!(f, "flushes take {least} to {most} ms, for {lasts} ms")
            }
            Self::Hang { node, lasts } => write!(f, "the disk of node {node} hangs for {lasts} ms"),
            Self::LongFlush { node, after, lasts } => {
                write!(f, "after {after} more flushes, one of node {node} takes {lasts} ms")
            }
            Self::Blackout { wiped: None, .. } => write!(f, "all machines lose their power"),
            Self::Blackout { wiped: Some(node), .. } => {
                write!(f, "all machines lose their power, and node {node} its disk")
            }
            Self::Error { node, operations } => {
                write!(f, "the disk of node {node} will fail once, after {operations} more operations")
            }
            Self::Rot { node } => write!(f, "a bit of a snapshot of node {node} flips"),
            Self::Transfer { asks, to } => write!(f, "node {asks} is asked to make node {to} the leader"),
            Self::Remove { asks, node, force: false } => {
                write!(f, "node {asks} is asked to remove node {node}")
            }
            Self::Remove { asks, node, .. } => {
                write!(f, "node {asks} is asked to remove node {node} by force")
            }
            Self::Add { asks, node } => write!(f, "node {node} is new, and node {asks} is asked to add it"),
            Self::Replace { asks, node } => {
                write!(f, "another machine takes the id of node {node}, and node {asks} is asked to add it")
            }
            Self::Wipe { node, .. } => write!(f, "node {node} loses its disk"),
            Self::Copy => write!(f, "all disks are copied"),
            Self::TurnBack { ref nodes, down } => {
                write!(f, "the disks of nodes {nodes:?} are turned back, which takes {down} ms")
            }
            Self::Clone { node } => {
                write!(f, "a second process of node {node} is started with a copy of its disk")
            }
            Self::Reinstall { node, newest, .. } => {
                write!(f, "node {node} gets a program that supports rules up to {newest}")
            }
            Self::Move { node, down } => {
                write!(f, "node {node} moves to another address, which takes {down} ms")
            }
            Self::Raise { asks } => write!(f, "node {asks} is asked to raise the rules"),
        }
    }
}
