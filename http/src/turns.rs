//! Turns: in which order a thread begins requests and handshakes.
//!
//! A thread polls its tasks in the order in which they became ready. So a tenant of a thousand connections would get a thousand times
//! the time of another. Therefore a request begins, a handshake goes on, and more bytes are read (`paced`) or sent (`bodies`) only in a
//! turn, a handler goes on (`in_turns`) in one, and the tenants of connections take turns, however many connections each of them has.
//! Whose a request is shows once it has begun: its first turn is that of the tenant that the connection had before.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use ringfence_room::Queue;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::tenant::Tenant;

/// How many turns are given at once to those who wait.
const AT_ONCE: usize = 4;
/// If the turns given together, and all else that was ready meanwhile, took longer than this, the next one is given alone: four long turns
/// one after the other would keep the thread from looking.
const LONG: Duration = Duration::from_millis(1);
/// Who asks for a turn gets it at once, if nobody waits and the thread has looked for what is ready within this time. Looking more
/// often costs more than turns do, and requests that begin together share an entry of the log.
const UNTIL_LOOK: Duration = Duration::from_millis(5);
/// The same for a handler that goes on. Most have little left to do, so that asking for a turn would cost more.
const UNTIL_LOOK_OF_HANDLERS: Duration = Duration::from_millis(20);
/// Bytes that are read, or sent, in a turn.
pub(super) const PER_TURN: usize = 16 << 10;

/// The number of the look at what is ready in which a turn was given.
type Look = u64;

/// A turn that was asked for. Ready when it is given.
pub(super) struct Turn(oneshot::Receiver<Look>);

impl Future for Turn {
    type Output = Look;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Look> {
        // Nobody drops the other end while it waits.
        Pin::new(&mut self.0).poll(cx).map(Result::unwrap_or_default)
    }
}

/// The turns of a thread.
#[derive(Default)]
pub(super) struct Turns(Mutex<Given>);

struct Given {
    /// When the thread last looked for tasks that are ready, as far as we know.
    looked: Instant,
    look: Look,
    /// Whether a task gives turns.
    is_given: bool,
    waiting: Queue<Tenant, oneshot::Sender<Look>>,
}

impl Default for Given {
    fn default() -> Self {
        Self { looked: Instant::now(), look: 0, is_given: false, waiting: Queue::default() }
    }
}

impl Turns {
    /// Waits for a turn of `tenant`. It lasts until the task waits for anything.
    pub(super) async fn take(self: &Arc<Self>, tenant: Tenant) {
        if let Some(turn) = self.ask(tenant) {
            turn.await;
        }
    }

    /// Asks for a turn of `tenant`; `None` if it is one at once.
    pub(super) fn ask(self: &Arc<Self>, tenant: Tenant) -> Option<Turn> {
        let mut given = self.given();
        if given.waiting.is_empty() && given.looked.elapsed() < UNTIL_LOOK {
            return None;
        }
        Some(self.ask_behind(&mut given, tenant))
    }

    /// Waits for another turn of `tenant`, whose last one took long, behind all that wait.
    pub(super) async fn take_another(self: &Arc<Self>, tenant: Tenant) {
        let turn = self.ask_behind(&mut self.given(), tenant);
        turn.await;
    }

    fn ask_behind(self: &Arc<Self>, given: &mut Given, tenant: Tenant) -> Turn {
        let (give, turn) = oneshot::channel();
        given.waiting.push(tenant, give);
        if !std::mem::replace(&mut given.is_given, true) {
            tokio::spawn(Arc::clone(self).give());
        }
        Turn(turn)
    }

    /// The thread was idle, and has looked for what is ready.
    pub(super) fn looked(&self) {
        let mut given = self.given();
        (given.looked, given.look) = (Instant::now(), given.look + 1);
    }

    /// Whether the thread has looked for what is ready since then. A turn of that look is over.
    pub(super) fn has_looked_since(&self, look: Look) -> bool {
        self.given().look != look
    }

    /// Asks for another turn of a task that may have had one long ago; `None` if the thread has looked meanwhile.
    pub(super) fn ask_again(self: &Arc<Self>, tenant: impl FnOnce() -> Tenant) -> Option<Turn> {
        let is_look_overdue = self.given().looked.elapsed() >= UNTIL_LOOK_OF_HANDLERS;
        is_look_overdue.then(|| self.ask(tenant())).flatten()
    }

    async fn give(self: Arc<Self>) {
        let mut at_once = AT_ONCE;
        loop {
            // Who is ready by now is in the queue afterwards.
            yield_now().await;
            self.looked();
            let mut before = Duration::ZERO;
            while before < UNTIL_LOOK {
                if !self.give_some(at_once) {
                    return;
                }
                turns_taken().await;
                let now = self.given().looked.elapsed();
                at_once = if now.saturating_sub(before) > LONG { 1 } else { AT_ONCE };
                before = now;
            }
        }
    }

    /// Gives turns to those who wait, but at most this many. `false` if nobody waits.
    fn give_some(&self, most: usize) -> bool {
        let (mut given, mut number) = (self.given(), 0);
        while number < most {
            let Some(turn) = given.waiting.pop() else {
                given.is_given = number > 0;
                return given.is_given;
            };
            // A connection that has closed uses no turn.
            number += usize::from(turn.send(given.look).is_ok());
        }
        true
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}

/// Returns once the tasks that were woken before have run.
async fn turns_taken() {
    let mut is_behind = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pin_project! {
    /// A future that goes on in turns: see [`in_turns`].
    pub(super) struct InTurns<T, F> {
        turns: Arc<Turns>,
        tenant: T,
        #[pin]
        future: F,
        next: Option<Turn>,
        has_begun: bool,
    }
}

/// The same future, of a task that has a turn. It goes on in another one, if the thread has not looked for long: a thousand handlers that
/// waited for the same may go on together.
pub(super) fn in_turns<T: Fn() -> Tenant, F: Future>(
    turns: &Arc<Turns>,
    tenant: T,
    future: F,
) -> InTurns<T, F> {
    InTurns { turns: Arc::clone(turns), tenant, future, next: None, has_begun: false }
}

impl<T: Fn() -> Tenant, F: Future> Future for InTurns<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if std::mem::replace(this.has_begun, true) && this.next.is_none() {
            *this.next = this.turns.ask_again(this.tenant);
        }
        if let Some(turn) = this.next {
            ready!(Pin::new(turn).poll(cx));
            *this.next = None;
        }
        this.future.poll(cx)
    }
}

/// What a reader or a writer has left of its turn, and its next one.
pub(super) struct Pace {
    turns: Arc<Turns>,
    /// Bytes before the next turn.
    free: usize,
    /// The next turn, if it was asked for.
    next: Option<Turn>,
}

impl Pace {
    /// In a turn.
    pub(super) fn new(turns: &Arc<Turns>) -> Self {
        Self { turns: Arc::clone(turns), free: PER_TURN, next: None }
    }

    pub(super) fn took(&mut self, bytes: usize) {
        self.free = self.free.saturating_sub(bytes);
    }

    /// Nothing more until the next turn.
    pub(super) fn end(&mut self) {
        self.free = 0;
    }

    /// Whether a turn must be asked for.
    pub(super) fn is_over(&self) -> bool {
        self.free == 0 && self.next.is_none()
    }

    /// Waits until there is something left of a turn of `tenant`.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, tenant: impl FnOnce() -> Tenant) -> Poll<()> {
        if self.is_over() {
            self.next = self.turns.ask(tenant());
        }
        if let Some(turn) = &mut self.next {
            ready!(Pin::new(turn).poll(cx));
            self.next = None;
        }
        if self.free == 0 {
            self.free = PER_TURN;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::watch;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::Principal(name.into())
    }

    #[tokio::test]
    async fn tenants_take_turns_however_many_connections_each_has() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        while turns.ask(tenant("many")).is_none() {}
        let begin = |name: &'static str| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                turns.take(tenant(name)).await;
                order.lock().unwrap().push(name);
            })
        };
        let mut all: Vec<_> = (0..100).map(|_| begin("many")).collect();
        all.extend([begin("few"), begin("few")]);
        for task in all {
            task.await.unwrap();
        }
        let order = order.lock().unwrap();
        let last_of_few = order.iter().rposition(|name| *name == "few").unwrap();
        assert!(last_of_few < 3 * AT_ONCE, "{last_of_few}");
        assert_eq!(order.len(), 102);
    }

    #[tokio::test]
    async fn handlers_that_go_on_together_do_so_in_turns() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let (go_on, ready) = watch::channel(false);
        let handle = |name: &'static str| {
            let (turns, mut ready, order) = (Arc::clone(&turns), ready.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                let handler = async {
                    let _waits = ready.clone();
                    ready.wait_for(|ready| *ready).await.unwrap();
                    std::thread::sleep(UNTIL_LOOK_OF_HANDLERS / 2);
                    order.lock().unwrap().push(name);
                };
                in_turns(&turns, || tenant(name), handler).await;
            })
        };
        let mut all: Vec<_> = (0..100).map(|_| handle("many")).collect();
        all.push(handle("few"));
        // All of them wait.
        while go_on.receiver_count() < 1 + 2 * all.len() {
            yield_now().await;
        }
        go_on.send_replace(true);
        for task in all {
            task.await.unwrap();
        }
        let few = order.lock().unwrap().iter().position(|name| *name == "few").unwrap();
        assert!(few < 3 * AT_ONCE, "{few}");
    }

    /// Four long turns were once given in a row, so others waited for 20 ms.
    #[tokio::test]
    async fn the_thread_looks_after_each_long_turn() {
        let turns = Arc::new(Turns::default());
        while turns.ask(tenant("a")).is_none() {}
        let looks = Arc::new(Mutex::new(Vec::new()));
        let work = || {
            let (turns, looks) = (Arc::clone(&turns), Arc::clone(&looks));
            tokio::spawn(async move {
                turns.take(tenant("a")).await;
                looks.lock().unwrap().push(turns.given().look);
                std::thread::sleep(UNTIL_LOOK);
            })
        };
        for task in (0..20).map(|_| work()).collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let mut looks = looks.lock().unwrap();
        looks.dedup();
        assert!(looks.len() > 20 - AT_ONCE, "{looks:?}");
    }

    #[tokio::test]
    async fn one_that_works_for_long_takes_turns_with_others() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let work = |name: &'static str, number: usize| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                for _ in 0..number {
                    turns.take_another(tenant(name)).await;
                    order.lock().unwrap().push(name);
                }
            })
        };
        let all: Vec<_> = (0..20).map(|_| work("long", 10)).chain([work("short", 1)]).collect();
        for task in all {
            task.await.unwrap();
        }
        let order = order.lock().unwrap();
        let short = order.iter().position(|name| *name == "short").unwrap();
        assert!(short < 3 * AT_ONCE, "{short}");
        assert_eq!(order.len(), 201);
    }

    #[tokio::test]
    async fn those_who_have_gone_hold_up_nobody_of_their_tenant() {
        let turns = Arc::new(Turns::default());
        while turns.ask(tenant("a")).is_none() {}
        for _ in 0..100 {
            drop(turns.ask(tenant("a")));
        }
        let waits = turns.ask(tenant("a")).expect("others were before");
        let first = turns.given().waiting.pop().expect("one waits");
        first.send(0).unwrap();
        assert!(waits.now_or_never().is_some());
    }

    #[tokio::test]
    async fn whoever_goes_away_loses_its_turn_and_no_one_elses() {
        let turns = Arc::new(Turns::default());
        while turns.ask(tenant("a")).is_none() {}
        let mut gone: Vec<_> = (0..100).map(|_| Box::pin(turns.take(tenant("a")))).collect();
        for turn in &mut gone {
            assert!(turn.now_or_never().is_none());
        }
        drop(gone);
        turns.take(tenant("a")).await;
        assert!(turns.given().waiting.is_empty());
    }
}
