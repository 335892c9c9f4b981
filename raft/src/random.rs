//! The random numbers of a node: ids, and the jitter of openraft's timeouts.
//!
//! openraft draws its numbers by a static function. So a source with a seed is local to the task that starts Raft, and
//! [`Runtime`] passes it on to the tasks that openraft spawns. The system's source needs none of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::async_runtime::AsyncRuntime;
use openraft::{OptionalSend, TokioRuntime};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use uuid::{Builder, Uuid};

/// The source of all random numbers of a node. Clones share it.
#[derive(Clone, Debug)]
pub struct Random(Option<Arc<AtomicU64>>);

tokio::task_local! {
    static SOURCE: Random;
}

impl Random {
    /// The operating system's.
    pub fn system() -> Self {
        Self(None)
    }

    /// The same numbers for the same seed, for a simulation.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(seed))))
    }

    /// Draws an id.
    #[expect(clippy::disallowed_methods, reason = "the system's source")]
    pub(crate) fn id(&self) -> Uuid {
        let Some(state) = &self.0 else { return Uuid::new_v4() };
        let bits = Uuid::from_u64_pair(split_mix(state), split_mix(state));
        Builder::from_random_bytes(bits.into_bytes()).into_uuid()
    }

    /// Runs `start`, which starts Raft, so that it draws from here.
    pub(crate) async fn provide<T>(&self, start: impl Future<Output = T>) -> T {
        match self.0 {
            Some(_) => SOURCE.scope(self.clone(), start).await,
            None => start.await,
        }
    }
}

/// SplitMix64.
fn split_mix(state: &AtomicU64) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// How long openraft waits for an answer of a peer, at least: for a connection to be made, and a vote to be written by a disk that
/// takes a second. openraft would allow a vote no more than the shortest election timeout, which ends when a leader has to be
/// replaced, and a heartbeat no more than the interval between two.
const ANSWER: Duration = Duration::from_secs(3);

/// Tokio, except that random numbers come from the node's source, and that no answer is given up before [`ANSWER`].
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match SOURCE.try_with(Clone::clone) {
            Ok(source) => TokioRuntime::spawn(SOURCE.scope(source, future)),
            Err(_) => TokioRuntime::spawn(future),
        }
    }

    fn thread_rng() -> SmallRng {
        let source = SOURCE.try_with(Clone::clone).unwrap_or_else(|_| Random::system());
        let (high, low) = source.id().as_u64_pair();
        SmallRng::seed_from_u64(high ^ low)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration.max(ANSWER), future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    async fn drawn() -> [u64; 3] {
        let spawned = Runtime::spawn(async { Runtime::thread_rng().next_u64() });
        [Runtime::thread_rng().next_u64(), Runtime::thread_rng().next_u64(), spawned.await.unwrap()]
    }

    #[tokio::test]
    async fn openraft_draws_from_the_seed_of_its_node_also_in_tasks_that_it_spawns() {
        let one = Random::seeded(1).provide(drawn()).await;
        assert_eq!(Random::seeded(1).provide(drawn()).await, one);
        assert_ne!(Random::seeded(2).provide(drawn()).await[2], one[2]);
        assert!(one[0] != one[1] && one[1] != one[2]);
        for system in [Random::system().provide(drawn()).await, drawn().await] {
            assert!(!system.iter().any(|number| one.contains(number)));
        }
    }

    #[test]
    fn an_id_is_a_random_uuid_and_the_same_for_the_same_seed() {
        let id = Random::seeded(7).id();
        assert_eq!(id, Random::seeded(7).id());
        assert_eq!(id.get_version_num(), 4);
        assert_ne!(id, Random::seeded(8).id());
        assert_ne!(Random::system().id(), Random::system().id());
    }
}
