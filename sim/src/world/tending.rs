//! What one machine does besides running: it starts, writes to its disk, and stops.

use ringfence_raft::NodeId;

use super::happen::Ending;
use super::{World, name};
use crate::machine::DOES_NOT_START;
use crate::plan::NEWEST_RULES;

/// When kernels give up a connection to a machine without power, in milliseconds.
const GIVE_UP: u64 = 3_000;
/// For how long after the end of its process a node that failed is down, in milliseconds.
const FAILED: u64 = 500;
/// The same, of one that cannot start as it is: somebody has to look after it.
const REFUSED: u64 = 5_000;

/// What a node says that is told that its disk was turned back, or that another has the same.
const COPIES: [&str; 3] =
    ["copy of its data directory", "turned back to an earlier state", "this one is a copy"];

impl World {
    /// Ends and begins what one machine does.
    pub(super) fn tend(&mut self, id: NodeId) {
        let (now, flush) = (self.now, self.flush);
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.starts_at.is_some_and(|at| at <= now) {
            machine.start(now, &self.network);
            self.comes_back(id);
            self.recorded.remove(&id);
            self.story.tell(now, format!("{} starts", name(id)));
            return;
        }
        if machine.process.is_none() || machine.frozen_until > now {
            return;
        }
        let mut is_given = false;
        if machine.flush_ends.is_some_and(|at| at <= now) {
            machine.flush_ends = None;
            machine.store.disk.finish_flush();
            is_given = true;
        }
        if machine.flush_ends.is_none() && machine.store.disk.begin_flush() {
            let takes = machine.flush_takes(|| self.rng.u64(flush.0..=flush.1));
            machine.flush_ends = Some((now + takes).max(machine.hangs_until));
            if now + takes < machine.hangs_until {
                self.coverage.count("flushes hung");
            }
        }
        for work in machine.store.disk.take_work() {
            let at = (now + self.rng.u64(flush.0..=flush.1 * 3)).max(machine.hangs_until);
            machine.work.push((at, work));
        }
        for (_, work) in machine.work.extract_if(.., |(at, _)| *at <= now) {
            work();
            is_given = true;
        }
        if is_given {
            self.wake(id);
        }
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.store.disk.is_off() {
            let (power, down) = machine.fuse.unwrap_or((false, FAILED));
            self.story.tell(now, format!("{} stops between two operations of its disk", name(id)));
            self.count("stops between two disk operations");
            self.kill(id, power, down);
            return;
        }
        if let Some(why) = machine.ended() {
            self.ended(id, &why);
        }
    }

    /// A process ended by itself: that is a finding, unless something explains it.
    fn ended(&mut self, id: NodeId, why: &str) {
        self.story.tell(self.now, format!("{} ended: {why}", name(id)));
        let Some(machine) = self.machines.get(&id) else { return };
        // A program that does not know the rules in use says so, and ends.
        let is_old = machine.running_rules < NEWEST_RULES && why.contains("this program supports rules");
        let is_emptied = self.removed.contains(&id) && why.contains("with another data directory");
        let is_copy = self.removed.contains(&id) && COPIES.iter().any(|it| why.contains(it));
        let expected = machine.store.disk.has_failed()
            || is_old
            || is_emptied
            || is_copy
            || self.turned.is_unknown
            || why == "stopped";
        let again = if why.starts_with(DOES_NOT_START) { REFUSED } else { FAILED };
        let down = machine.fuse.map_or(again, |(_, down)| down);
        if !expected {
            self.findings.push(format!("node {id} ended though nothing was wrong with its disk: {why}"));
        }
        // The founding was finished before any fault, and at most one machine lacks its data.
        if why.contains("empty the data directory") {
            self.findings.push(format!("node {id} asks for more data to be lost: {why}"));
        }
        if is_copy {
            self.count("copies refused");
            self.ends_as_copy(id);
        }
        if is_old {
            self.count("programs that did not know the rules");
        }
        self.count("processes that ended by themselves");
        self.kill(id, false, down);
    }

    /// Ends the process of a node, which is started again after a while.
    pub(super) fn kill(&mut self, id: NodeId, power: bool, down: u64) {
        self.forgets(id);
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let place = machine.place;
        if power {
            self.network.silence(place);
        }
        self.network.hang_up(place);
        let is_torn = machine.kill(power, &mut self.rng);
        machine.starts_at = Some(self.now + down);
        if is_torn {
            self.count("torn writes");
        }
        if power {
            self.later.entry(self.now + GIVE_UP).or_default().push(Ending::GiveUp);
        }
    }
}
