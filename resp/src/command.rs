//! The names of commands.

use ringfence_access::KeyRight;
use ringfence_service::Right;

use crate::measure::OTHER;
use crate::refused::Refused;
use crate::verbs;

/// A command, by the code that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandName {
    Auth,
    Client,
    Cluster,
    Commands,
    Config,
    Discard,
    Exec,
    Hello,
    Hget,
    Hmget,
    Info,
    Multi,
    Ping,
    Quit,
    Reset,
    Role,
    Script,
    Select,
    Unwatch,
    Wait,
    Watch,
    /// A command on keys, a script, or an unknown command.
    Work,
}

const ANY: usize = usize::MAX;

/// A name, the fewest and the most arguments after it, and its command.
const COMMANDS: &[(&str, usize, usize, CommandName)] = &[
    ("auth", 1, 2, CommandName::Auth),
    ("client", 1, ANY, CommandName::Client),
    ("cluster", 1, ANY, CommandName::Cluster),
    ("asking", 0, 0, CommandName::Cluster),
    ("readonly", 0, 0, CommandName::Cluster),
    ("readwrite", 0, 0, CommandName::Cluster),
    ("command", 0, ANY, CommandName::Commands),
    ("config", 1, ANY, CommandName::Config),
    ("discard", 0, 0, CommandName::Discard),
    ("exec", 0, 0, CommandName::Exec),
    ("hello", 0, ANY, CommandName::Hello),
    ("hget", 2, 2, CommandName::Hget),
    ("hmget", 2, ANY, CommandName::Hmget),
    ("info", 0, ANY, CommandName::Info),
    ("multi", 0, 0, CommandName::Multi),
    ("ping", 0, 1, CommandName::Ping),
    ("quit", 0, ANY, CommandName::Quit),
    ("reset", 0, 0, CommandName::Reset),
    ("role", 0, 0, CommandName::Role),
    ("script", 1, ANY, CommandName::Script),
    ("select", 1, 1, CommandName::Select),
    ("unwatch", 0, 0, CommandName::Unwatch),
    ("wait", 2, 2, CommandName::Wait),
    ("watch", 1, ANY, CommandName::Watch),
    ("eval", 2, ANY, CommandName::Work),
    ("eval_ro", 2, ANY, CommandName::Work),
    ("evalsha", 2, ANY, CommandName::Work),
    ("evalsha_ro", 2, ANY, CommandName::Work),
];

impl CommandName {
    /// The command with this name, and its name in metrics and in the log.
    pub(crate) fn of(name: &[u8]) -> (&'static str, Self) {
        let found = COMMANDS.iter().find(|(own, ..)| own.as_bytes().eq_ignore_ascii_case(name));
        match found {
            Some(&(name, .., command)) => (name, command),
            None => (verbs::name(name).unwrap_or(OTHER), Self::Work),
        }
    }

    /// Checks the number of arguments of the command with this name, without the name.
    pub(crate) fn check(name: &str, arguments: usize) -> Result<(), Refused> {
        let found = COMMANDS.iter().find(|(own, ..)| *own == name);
        match found {
            Some(&(_, fewest, most, _)) if !(fewest..=most).contains(&arguments) => {
                Err(verbs::wrong_number(name))
            }
            _ => Ok(()),
        }
    }

    /// The right that it needs. A client without any gets an answer to those that show who it is, or that the node is there.
    pub(crate) fn right(self) -> Right {
        use CommandName::{Auth, Hello, Ping, Quit, Reset};
        match self {
            Auth | Hello | Ping | Quit | Reset => Right::Stranger,
            _ if self.is_for_holders() => Right::OnKeys(KeyRight::Acquire),
            _ => Right::AnyOf(&[KeyRight::Acquire, KeyRight::Read]),
        }
    }

    /// Whether it may be sent as a line of words. A program that speaks another protocol may send such lines by mistake. AUTH must come first.
    pub(crate) fn is_for_people(self, is_first: bool) -> bool {
        matches!(self, Self::Ping | Self::Quit) || self == Self::Auth && is_first
    }

    /// Whether it decides what later commands of the connection mean.
    pub(crate) fn is_of_connection(self) -> bool {
        use CommandName::{Auth, Discard, Exec, Hello, Multi, Reset, Select, Unwatch, Watch};
        matches!(self, Auth | Discard | Exec | Hello | Multi | Reset | Select | Unwatch | Watch)
    }

    /// Whether it needs the right to acquire keys.
    fn is_for_holders(self) -> bool {
        use CommandName::{Discard, Exec, Multi, Script, Unwatch, Watch, Work};
        matches!(self, Discard | Exec | Multi | Script | Unwatch | Watch | Work)
    }
}
