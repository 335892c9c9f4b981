//! Requests of clients that nodes have not answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ringfence_laws::history::Conclusion;
use ringfence_service::Unsent;
use tokio::sync::oneshot;

use super::World;
use crate::serve::serve;

/// Answers of nodes, on their way to their clients, by the number of the request.
pub(super) type Answers = Arc<Mutex<BTreeMap<u64, Answer>>>;

/// What a node answered.
pub(super) struct Answer {
    call: usize,
    reply: oneshot::Sender<Conclusion>,
    /// `None`: the connection broke.
    conclusion: Option<Conclusion>,
}

/// A request that a node has not answered. If it is dropped, the connection breaks.
///
/// A runtime that is dropped drops its tasks in an order that nobody fixes, so their ends take effect later, in order.
pub(super) struct Asking {
    pub(super) number: u64,
    pub(super) call: usize,
    pub(super) reply: Option<oneshot::Sender<Conclusion>>,
    pub(super) conclusion: Option<Conclusion>,
    pub(super) answers: Answers,
}

impl Asking {
    pub(super) fn answer(mut self, conclusion: Conclusion) {
        self.conclusion = Some(conclusion);
    }

    /// Waits until the client does.
    pub(super) async fn given_up(&mut self) {
        self.reply.as_mut().expect("it is there until this is dropped").closed().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let reply = self.reply.take().expect("nothing else takes it");
        let answer = Answer { call: self.call, reply, conclusion: self.conclusion.take() };
        self.answers.lock().expect("nothing panics while the answers are locked").insert(self.number, answer);
    }
}

impl World {
    /// Passes on what clients and nodes said to each other.
    pub(super) fn pass_on(&mut self) {
        for request in self.desk.take_requests() {
            self.requests += 1;
            let machine = self.machines.get_mut(&request.node);
            // What a process is given, it is given at its own time: not while its clock lags behind.
            let machine = machine.map(|machine| {
                machine.run_until(self.now);
                &*machine
            });
            let running = machine.and_then(|it| Some((it, it.process.as_ref()?, it.service()?)));
            let Some((machine, process, service)) = running else {
                self.clients.wake(self.now);
                let _ = request.reply.send(Conclusion::NotDone { why: "the node does not run".to_owned() });
                continue;
            };
            let is_on = Arc::clone(&machine.is_on);
            let crate::clients::Request { call, invocation, reply, .. } = request;
            let (number, answers, load) = (self.requests, Arc::clone(&self.answers), self.plan.load);
            let mut asking = Asking { number, call, reply: Some(reply), conclusion: None, answers };
            process.wake(self.now);
            process.spawn(async move {
                let (conclusion, unsent) = tokio::select! {
                    biased;
                    answered = serve(&service, invocation, load) => answered,
                    () = asking.given_up() => return,
                };
                // A machine that has stopped between two operations says nothing more.
                if is_on.load(std::sync::atomic::Ordering::Relaxed) {
                    asking.answer(conclusion);
                    unsent.into_iter().for_each(Unsent::sent);
                }
            });
        }
        let answers =
            std::mem::take(&mut *self.answers.lock().expect("nothing panics while the answers are locked"));
        if !answers.is_empty() {
            self.clients.run_until(self.now);
        }
        for Answer { call, reply, conclusion } in answers.into_values() {
            self.clients.wake(self.now);
            if conclusion.is_some_and(|conclusion| reply.send(conclusion).is_err()) {
                self.desk.came_too_late(call);
            }
        }
        for machine in
            self.machines.values().filter(|machine| machine.fuse.is_some() && machine.store.disk.is_off())
        {
            machine.is_on.store(false, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
