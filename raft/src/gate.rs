//! Keeps commands from programs that cannot read them.
//!
//! A program reads the commands of the rules that it supports. It stops at a log entry with any other, and closes the
//! connection of a call with one, on which other calls wait. Hence two invariants, one for the log and one for calls:
//!
//! - An entry has only commands that its own rules have (`propose::proposer`). All members support the rules of an entry. They
//!   are compared when the entry gets its rules, so no raise comes between.
//! - A program is sent only commands of rules that it supports (`peer::call`, which knows the program at the other end of its
//!   connection).
//!
//! A command that is withheld was not done, and never will be. Its [refusal](Refusal::NotYet) takes the place of its outcome.

use std::mem;

use ringfence_lease::{Command, Outcome, Refusal, Request};

/// The first rules that have a command.
pub type Since = fn(&Command) -> u8;

/// Commands that were taken out of a request, in their order, with the place of each.
#[derive(Debug, Default)]
pub(crate) struct Withheld(Vec<(usize, Command, Refusal)>);

impl Withheld {
    /// Takes out of `request` what exists only since rules after `known`. `rules`: those that the cluster uses.
    pub(crate) fn take(request: &mut Request, known: u8, rules: u8, since: Since) -> Self {
        if is_known(request, known, since) {
            return Self::default();
        }
        let (mut kept, mut withheld) = (Vec::new(), Vec::new());
        for (place, command) in mem::take(&mut request.commands).into_iter().enumerate() {
            match since(&command) {
                since if since > known => withheld.push((place, command, Refusal::NotYet { rules, since })),
                _ => kept.push(command),
            }
        }
        request.commands = kept;
        Self(withheld)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The outcomes of the whole request, of which `outcomes` are those of the rest.
    pub(crate) fn refuse(self, outcomes: impl Iterator<Item = Outcome>) -> Vec<Outcome> {
        let refused = self.0.into_iter().map(|(place, _, refusal)| (place, Outcome::Refused(refusal)));
        merge(outcomes, refused)
    }

    /// The commands of the whole request, of which `commands` are the rest.
    pub(crate) fn put_back(self, commands: impl Iterator<Item = Command>) -> Vec<Command> {
        merge(commands, self.0.into_iter().map(|(place, command, _)| (place, command)))
    }
}

/// Whether a program that supports rules up to `known` reads all commands of `request`.
pub(crate) fn is_known(request: &Request, known: u8, since: Since) -> bool {
    request.commands.iter().all(|command| since(command) <= known)
}

/// Puts each of `placed`, which are in the order of their places, at its place among `rest`.
fn merge<T>(mut rest: impl Iterator<Item = T>, placed: impl Iterator<Item = (usize, T)>) -> Vec<T> {
    let mut whole = Vec::new();
    for (place, one) in placed {
        whole.extend(rest.by_ref().take(place - whole.len()));
        whole.push(one);
    }
    whole.extend(rest);
    whole
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{LeaseId, Revision};

    use super::*;

    fn release(id: u128) -> Command {
        Command::Release { lease_id: LeaseId::from_u128(id).unwrap() }
    }

    fn start(revision: u64) -> Command {
        Command::Start { revision: Revision(revision) }
    }

    fn since(command: &Command) -> u8 {
        match command {
            Command::Release { .. } => 3,
            other => other.since(),
        }
    }

    #[test]
    fn only_what_is_too_new_is_taken_out_and_everything_keeps_its_place() {
        let not_yet = || Outcome::Refused(Refusal::NotYet { rules: 1, since: 3 });
        let (new, old) = (|| release(7), || start(7));
        let requests = [
            vec![],
            vec![new()],
            vec![old()],
            vec![new(), old(), old(), new(), new(), old()],
            vec![old(), old(), new()],
        ];
        for commands in requests {
            let mut request = Request::from(commands.clone());
            let withheld = Withheld::take(&mut request, 2, 1, since);
            assert!(is_known(&request, 2, since));
            assert_eq!(withheld.is_empty(), is_known(&commands.clone().into(), 2, since));
            let outcome = |command: &Command| if since(command) > 2 { not_yet() } else { Outcome::Done };
            let rest = request.commands.iter().map(|_| Outcome::Done);
            let expected: Vec<Outcome> = commands.iter().map(outcome).collect();
            assert_eq!(withheld.refuse(rest), expected);

            let mut request = Request::from(commands.clone());
            let withheld = Withheld::take(&mut request, 2, 1, since);
            assert_eq!(withheld.put_back(request.commands.into_iter()), commands);

            let mut request = Request::from(commands.clone());
            assert!(Withheld::take(&mut request, 3, 3, since).is_empty());
            assert_eq!(request.commands, commands);
        }
    }
}
