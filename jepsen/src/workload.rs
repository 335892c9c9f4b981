//! What clients ask for, and by which laws it is judged.
//!
//! A process takes one turn after the other. A turn is drawn whole before it is taken: from the seed of the run and the
//! number of the process alone, whatever the cluster answers. So the same seed gives the same wishes, in the same order;
//! how many of them there is time for, and how each ends, is up to the cluster.

mod client;
mod draws;
mod fenced_register;
mod lease;
mod locked_set;
mod queue;
mod resp;

use std::fmt;

use clap::ValueEnum;
use ringfence_laws::check::answers::LINEARIZABLE_READS;
use ringfence_laws::check::causes::{BOUNDED_END, NO_EARLY_END};
use ringfence_laws::check::clock::CLUSTER_TIME;
use ringfence_laws::check::library::LIBRARY;
use ringfence_laws::check::loop_lag::LOOP_LAG;
use ringfence_laws::check::mirror::{
    BEFORE_ANSWER, MIRROR_EQUAL_AT_END, MIRROR_NEVER_AHEAD, MIRROR_NEVER_FALLS,
};
use ringfence_laws::check::nodes::{ALL_SERVE, EQUAL_STATES, NO_PANIC};
use ringfence_laws::check::queues::{BATCH_PLACES, NO_LATE_WAITER, QUEUE_ORDER};
use ringfence_laws::check::register::{FENCED_REGISTER, LOCKED_SET};
use ringfence_laws::check::repeats::ONE_GRANT_PER_LEASE;
use ringfence_laws::check::{ALWAYS, Checker, OF_ALL_CALLS, OF_SETS};
use ringfence_laws::history::{About, Conclusion};
use ringfence_wire::{Key, Mode, Token, WantedKey};

use crate::nemesis::{BAD_BUILD, Nemesis, UPGRADE};
use crate::process::Process;
use crate::workload::draws::Draws;

/// Laws about real time.
const OF_TIME: [&str; 6] = [
    CLUSTER_TIME.name,
    NO_EARLY_END.name,
    BOUNDED_END.name,
    NO_LATE_WAITER.name,
    BATCH_PLACES.name,
    LOOP_LAG.name,
];

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Workload {
    /// Holders that pause write guarded registers
    FencedRegister,
    /// The same without the guard: the checkers must find lost updates
    UnfencedRegister,
    /// All calls, on many keys
    Lease,
    /// Elements are added to sets under a lock
    LockedSet,
    /// Many clients wait for few keys
    Queue,
    /// Leases on few keys, mirrored to Redis
    Mirror,
    /// Programs that use the client library, beside clients that make all calls
    Client,
    /// Programs that lock over RESP, as with Redis, beside clients that make all calls
    Resp,
}

impl Workload {
    /// Those that suites run.
    pub const ALL: [Self; 7] = [
        Self::FencedRegister,
        Self::UnfencedRegister,
        Self::Lease,
        Self::LockedSet,
        Self::Queue,
        Self::Mirror,
        Self::Resp,
    ];

    /// The keys that are asked for.
    pub fn keys(self) -> Vec<Key> {
        match self {
            Self::FencedRegister | Self::UnfencedRegister => numbered("register", 2),
            Self::Lease => numbered("lease", 12),
            Self::LockedSet => numbered("set", 2),
            Self::Queue => numbered("queue", 2),
            Self::Mirror => numbered("mirrored", 8),
            Self::Client => [numbered("set", 2), numbered("kept", 4), numbered("lease", 2)].concat(),
            Self::Resp => [numbered("set", 1), numbered("lease", 4), numbered("plain", 8)].concat(),
        }
    }

    /// The keys that this process asks for.
    fn keys_of(self, process: u32) -> Vec<Key> {
        match (self, process % 4) {
            (Self::Client, 0 | 1) => numbered("set", 2),
            (Self::Client, 2) => vec![numbered("kept", 4).swap_remove(process as usize / 4 % 4)],
            (Self::Client, _) => numbered("lease", 2),
            (Self::Resp, 3) if process % 8 == 3 => numbered("set", 1),
            // Where nobody waits, keys are free often enough to be set together.
            (Self::Resp, 2) => numbered("plain", 8),
            (Self::Resp, _) => numbered("lease", 4),
            _ => self.keys(),
        }
    }

    /// Whether its keys guard registers.
    pub fn has_registers(self) -> bool {
        use Workload::{Client, FencedRegister, LockedSet, Resp, UnfencedRegister};
        matches!(self, FencedRegister | UnfencedRegister | LockedSet | Client | Resp)
    }

    /// Whether these ask the guard.
    pub fn is_fenced(self) -> bool {
        self != Self::UnfencedRegister
    }

    /// Whether it is about the mirror.
    pub fn has_mirror(self) -> bool {
        self == Self::Mirror
    }

    /// Whether nodes must not be in network namespaces: from there they reach no Redis, and no client library reaches them.
    pub fn needs_loopback(self) -> bool {
        matches!(self, Self::Mirror | Self::Client)
    }

    /// Whether grants wait for the mirror, in the run with this seed.
    pub fn is_before_answer(self, seed: u64) -> bool {
        self.has_mirror() && seed % 2 == 1
    }

    /// How many processes there are, if nothing is said.
    pub fn concurrency(self) -> u32 {
        match self {
            Self::Queue | Self::Client => 16,
            _ => 12,
        }
    }

    /// Whether its leases must have ended in bounded time, so that the final reads are made when that is over.
    pub fn is_judged_by_its_end(self) -> bool {
        matches!(self, Self::Lease | Self::Resp)
    }

    /// The laws by which this run of it is judged.
    pub fn laws(self, about: &About) -> Vec<&'static Checker> {
        let mut laws = ALWAYS.to_vec();
        laws.extend(match self {
            Self::FencedRegister | Self::UnfencedRegister => vec![&FENCED_REGISTER],
            Self::Lease => OF_ALL_CALLS.to_vec(),
            Self::LockedSet => vec![&LOCKED_SET],
            Self::Queue => vec![&QUEUE_ORDER, &NO_LATE_WAITER, &BATCH_PLACES],
            Self::Mirror => {
                vec![&LINEARIZABLE_READS, &MIRROR_NEVER_AHEAD, &MIRROR_NEVER_FALLS, &MIRROR_EQUAL_AT_END]
            }
            Self::Client => {
                vec![&LOCKED_SET, &ONE_GRANT_PER_LEASE, &QUEUE_ORDER, &NO_LATE_WAITER, &LINEARIZABLE_READS]
            }
            Self::Resp => [&OF_ALL_CALLS[..], &OF_SETS, &[&LOCKED_SET]].concat(),
        });
        laws.extend(self.is_before_answer(about.seed).then_some(&BEFORE_ANSWER));
        if about.nemeses.iter().any(|nemesis| nemesis == BAD_BUILD) {
            // What the bad build answers until it stops is wrong.
            return vec![&EQUAL_STATES, &ALL_SERVE, &NO_PANIC];
        }
        let is_gentle = about.nemeses.iter().all(|nemesis| nemesis == UPGRADE);
        laws.extend((self == Self::Client && is_gentle).then_some(&LIBRARY));
        let is_timed = about.nemeses.contains(&Nemesis::MonotonicClock.to_string());
        // Where the clock lies by which they are kept, these cannot be kept.
        laws.retain(|law| !(is_timed && OF_TIME.contains(&law.name)));
        laws
    }

    /// Takes turns as `process` until the time is over.
    pub async fn run(self, seed: u64, mut process: Process) {
        let draws = &mut Draws::new(seed, process.number(), self.keys_of(process.number()));
        let process = &mut process;
        match self {
            Self::FencedRegister | Self::UnfencedRegister => {
                turns::<fenced_register::Hold>(draws, process).await
            }
            // Leases that come and go quickly: there is always something on its way to Redis.
            Self::Mirror if process.number() % 2 == 1 => turns::<queue::Stand>(draws, process).await,
            Self::Lease | Self::Mirror => turns::<lease::Errand>(draws, process).await,
            Self::LockedSet => turns::<locked_set::Add>(draws, process).await,
            Self::Queue if process.number() % 4 == 3 => turns::<queue::Crowd>(draws, process).await,
            Self::Queue => turns::<queue::Stand>(draws, process).await,
            Self::Client => match process.number() % 4 {
                0 | 1 => turns::<client::Add>(draws, process).await,
                2 => turns::<client::Keep>(draws, process).await,
                _ => turns::<lease::Errand>(draws, process).await,
            },
            Self::Resp => match process.number() % 8 {
                3 => turns::<resp::Add>(draws, process).await,
                1 | 5 | 7 => turns::<lease::Errand>(draws, process).await,
                _ => turns::<resp::Errand>(draws, process).await,
            },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// What a process does in one go.
trait Turn: Sized {
    /// Decides what it will be.
    fn draw(draws: &mut Draws) -> Self;

    /// Does it. `None` where the time was over before its end.
    async fn take(self, process: &mut Process) -> Option<()>;
}

async fn turns<T: Turn>(draws: &mut Draws, process: &mut Process) {
    while !process.is_over() {
        T::draw(draws).take(process).await;
    }
}

fn numbered(name: &str, count: u32) -> Vec<Key> {
    let key = |number| Key::new(&format!("{name}/{number}")).expect("a name and a number are a key");
    (0..count).map(key).collect()
}

/// The wish for one key, alone.
pub(crate) fn exclusive(key: &Key) -> Vec<WantedKey> {
    vec![WantedKey { key: key.clone(), mode: Mode::Exclusive }]
}

/// The token and the fence of a lease on one key, if it was granted.
pub(crate) fn held(conclusion: Conclusion) -> Option<(Token, Token)> {
    match conclusion {
        Conclusion::Granted { grant, .. } => Some((grant.token, grant.keys.first()?.fence)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn drawn<T: Turn + Debug>(seed: u64, process: u32) -> Vec<String> {
        let mut draws = Draws::new(seed, process, Workload::Lease.keys());
        (0..50).map(|_| format!("{:?}", T::draw(&mut draws))).collect()
    }

    fn check<T: Turn + Debug>() {
        assert_eq!(drawn::<T>(7, 3), drawn::<T>(7, 3));
        assert_ne!(drawn::<T>(7, 3), drawn::<T>(7, 4), "processes do not do the same");
        assert_ne!(drawn::<T>(7, 3), drawn::<T>(8, 3), "seeds do not do the same");
        assert_ne!(drawn::<T>(7, 3), drawn::<T>(8, 2), "nor do neighbours of neighbours");
    }

    #[test]
    fn what_a_process_asks_for_comes_from_the_seed_and_its_number_alone() {
        check::<fenced_register::Hold>();
        check::<lease::Errand>();
        check::<locked_set::Add>();
        check::<queue::Stand>();
        check::<queue::Crowd>();
        check::<client::Add>();
        check::<client::Keep>();
        check::<resp::Errand>();
        check::<resp::Add>();
    }

    #[test]
    fn a_workload_is_called_as_on_the_command_line() {
        let names = Workload::ALL.map(|workload| workload.to_string());
        let all = ["fenced-register", "unfenced-register", "lease", "locked-set", "queue", "mirror", "resp"];
        assert_eq!(names, all);
    }
}
