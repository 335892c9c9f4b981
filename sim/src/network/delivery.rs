//! The way of a message: when it is due, what keeps it back, and how it is delivered.

use std::cmp::Reverse;
use std::io::Write;
use std::task::Waker;

use ringfence_raft::NodeId;

use super::State;
use super::delays::{Hold, Latency};
use super::direction::{Direction, End};
use crate::messages::{INSTALLED, SNAPSHOT_END, describe, split};

impl State {
    pub(super) fn schedule(&mut self, direction: usize, due: u64) {
        self.numbered += 1;
        self.due.push(Reverse((due, self.numbered, direction)));
    }

    fn delay(&mut self) -> u64 {
        let Latency { least, most, spikes, spike } = self.latency;
        match self.rng.u32(0..1_000) < spikes {
            true => self.rng.u64(least..=spike.max(least)),
            false => self.rng.u64(least..=most.max(least)),
        }
    }

    /// How long a connection is busy with so many bytes, where its path is narrow.
    fn transmission(&mut self, from: NodeId, to: NodeId, bytes: usize) -> u64 {
        let narrow = self.narrows.iter().filter(|it| (it.from, it.to) == (from, to));
        let Some(narrow) = narrow.min_by_key(|it| it.rate) else { return 0 };
        self.coverage.count("messages on narrow paths");
        (bytes as u64 * 1_000 / narrow.rate.max(1)).min(narrow.until.saturating_sub(self.now))
    }

    /// Puts a whole message on its way.
    pub(super) fn send(&mut self, direction: usize, message: Vec<u8>) {
        let mut due = self.now + self.delay().max(1);
        let Direction { from, to, .. } = self.directions[direction];
        if self.directions[direction].queue.is_empty() {
            due += self.transmission(from, to, message.len());
        }
        let pipe = &mut self.directions[direction];
        let due = pipe.queue.back().map_or(due, |(last, _)| due.max(*last));
        pipe.in_flight += message.len();
        pipe.queue.push_back((due, message));
        if pipe.queue.len() == 1 {
            self.schedule(direction, due);
        }
    }

    /// Delivers the first message of a direction, if it is due and nothing keeps it back.
    pub(super) fn deliver_first(&mut self, number: usize, wakers: &mut Vec<Waker>) {
        let now = self.now;
        let Some((due, _)) = self.directions[number].queue.front() else { return };
        let due = *due;
        if due > now {
            // It was scheduled again.
            return self.schedule(number, due);
        }
        if let Some(until) = self.kept_until(number) {
            self.directions[number].queue[0].0 = until;
            return self.schedule(number, until);
        }
        if self.is_torn(number) {
            return self.tear(number, wakers);
        }
        self.hand_over(number, wakers);
        let direction = &self.directions[number];
        let (from, to) = (direction.from, direction.to);
        let next = direction.queue.front().map(|(due, message)| (*due, message.len()));
        if let Some((due, bytes)) = next {
            let due = due.max(now + self.transmission(from, to, bytes));
            self.directions[number].queue[0].0 = due;
            self.schedule(number, due);
        }
    }

    /// Until when something keeps back the first message of a direction.
    fn kept_until(&mut self, number: usize) -> Option<u64> {
        let direction = &self.directions[number];
        let bytes = direction.queue.front()?.1.len();
        let link = (direction.from, direction.to);
        let holds = |hold: &&Hold| {
            (hold.from, hold.to) == link
                && hold.channel.is_none_or(|channel| direction.channel == Some(channel))
                && hold.replies.is_none_or(|replies| replies == direction.is_back)
                && hold.over < bytes
        };
        let held_until = self.holds.iter().filter(holds).map(|hold| hold.until).max();
        let is_large = self.holds.iter().filter(holds).any(|hold| hold.over > 0);
        if held_until.is_some() && direction.is_acknowledging() {
            self.coverage.count("acknowledgements held");
        }
        if is_large {
            self.coverage.count("large messages held");
        }
        match self.cut.contains(&link) {
            // Looked at again after a while: nothing says when the cut ends.
            true => Some(self.now + 100),
            false => held_until,
        }
    }

    /// Whether the first message of a direction ends a snapshot, and those of its sender do not arrive.
    fn is_torn(&self, number: usize) -> bool {
        let direction = &self.directions[number];
        let kind = direction.queue.front().and_then(|(_, message)| split(message));
        kind.is_some_and(|(kind, _)| kind == SNAPSHOT_END)
            && self.tears.iter().any(|(from, _)| *from == direction.from)
    }

    /// Breaks a connection.
    fn tear(&mut self, number: usize, wakers: &mut Vec<Waker>) {
        self.coverage.count("snapshots torn");
        for number in [number, self.directions[number].other] {
            let direction = &mut self.directions[number];
            direction.end_with(End::Reset, &mut self.coverage, wakers);
            self.touched.extend([direction.from, direction.to]);
        }
    }

    /// Gives the first message of a direction to its reader.
    fn hand_over(&mut self, number: usize, wakers: &mut Vec<Waker>) {
        let now = self.now;
        let direction = &mut self.directions[number];
        let Some((_, message)) = direction.queue.pop_front() else { return };
        direction.in_flight -= message.len();
        for bytes in [&now.to_le_bytes()[..], &(number as u64).to_le_bytes(), &message] {
            self.digest.write_all(bytes).expect("a hasher takes all");
        }
        self.coverage.count("messages");
        let (from, to) = (direction.from, direction.to);
        if split(&message).is_some_and(|(kind, _)| kind == INSTALLED) {
            self.coverage.count("snapshots installed");
            self.story.tell(now, format!("node {from} has installed a snapshot of node {to}"));
        }
        let channel = direction.channel;
        self.story.detail(now, || format!("node {from} to node {to}: {}", describe(channel, &message)));
        direction.readable.extend(message);
        wakers.extend(direction.reader.take());
        self.touched.push(direction.to);
        // The sender has nothing to do unless it waits for room.
        if let Some(writer) = direction.writer.take() {
            wakers.push(writer);
            self.touched.push(direction.from);
        }
    }
}
