use ringfence_wire::PrincipalName;
use serde::{Deserialize, Serialize};

use crate::Command;

/// The commands of one request, and who gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `None`: nobody in particular, because the rules of the cluster or of the node do not name anybody.
    pub by: Option<Owner>,
    /// In their order.
    pub commands: Vec<Command>,
}

/// A principal, and how much it may have. Its lease ids are its own: another principal's are unknown to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its name, as a node has authenticated it.
    pub name: PrincipalName,
    /// What the rules of that node allow it.
    pub quota: Quota,
}

/// Which leases a principal may have. `None`: any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Quota {
    /// All its leases, live or waiting.
    pub leases: Option<u32>,
    /// Its waiting leases.
    pub waiting: Option<u32>,
    /// About how many bytes all its leases take.
    pub bytes: Option<u64>,
}

/// The number of a principal's lease ids in the table. It depends on the history of this process and never shows outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpaceNo(pub(crate) u16);

impl Request {
    /// The name of who gave them.
    pub fn name(&self) -> Option<&PrincipalName> {
        self.by.as_ref().map(|owner| &owner.name)
    }

    /// About how many bytes it takes in the log.
    pub fn size_hint(&self) -> usize {
        let commands = self.commands.iter().map(Command::size_hint).sum::<usize>();
        commands + self.name().map_or(0, |name| name.as_str().len() + 16)
    }
}

impl From<Vec<Command>> for Request {
    fn from(commands: Vec<Command>) -> Self {
        Self { by: None, commands }
    }
}
