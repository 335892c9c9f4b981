//! One request of one caller, whichever door it came by.
//!
//! ```text
//!  new ──▶ admit: who is it? ─▶ counted ─▶ its right ──▶ its work, which may cost more ──▶ ended: logged ─▶ held back
//!           ▲                                │
//!           └── a request that waited ◀──────┘
//! ```
//! The order is the same at each door, so that the same requests get the same answers. Nothing that was refused is kept: a request that must
//! wait before its work begins is admitted again then, and only what was not done before is done.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ringfence_access::Proof;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::request_log::{Ending, RequestLine};
use crate::rights::Right;
use crate::service::Service;
use crate::usage::BYTES_OF_A_REQUEST;

/// Bytes of a request beyond these cost nothing: no door does more with them than to pass over them.
const MOST_BYTES: usize = 1 << 20;

/// What a door knows of a request.
pub trait Report {
    /// The service of the node.
    fn service(&self) -> &Service;

    /// Counts the end of the request in the metrics of the door.
    fn measure(&self, _took: Duration) {}

    /// Whether there may be a log line about this ending.
    fn may_log(&self, _ending: Ending) -> bool {
        true
    }

    /// Writes a log line about the request.
    fn log(&self, _line: &RequestLine<'_>) {}
}

/// Requests that no metric and no log tells of, as those of a simulation.
impl Report for Arc<Service> {
    fn service(&self) -> &Service {
        self
    }
}

/// A request. Dropping it measures and logs its end: without an answer, its connection closed.
pub struct Visit<R: Report> {
    report: R,
    /// `None` while nobody is known to have sent it.
    caller: Option<Caller>,
    /// What it requires of its caller.
    right: Right,
    /// For how many requests it was counted.
    cost: usize,
    /// For how many of them, besides itself, the bytes that it came with were counted.
    bytes: usize,
    /// For how many of them the scripts that it runs were counted.
    steps: usize,
    time: Time,
    /// How long it stood in a queue because it asked to. That does not make it slow.
    waited: Duration,
}

/// The time that the work of a request takes.
#[derive(Clone, Copy)]
enum Time {
    /// It has not begun: the request waits for others.
    Waits,
    /// It began then.
    Since(Instant),
    /// It is over, and took that long.
    Took(Duration),
}

static ANYBODY: LazyLock<Caller> = LazyLock::new(Caller::anybody);

impl<R: Report> Visit<R> {
    /// A request whose work begins now.
    pub fn new(report: R) -> Self {
        let (time, waited) = (Time::Since(Instant::now()), Duration::ZERO);
        Self { report, caller: None, right: Right::Public, cost: 0, bytes: 0, steps: 0, time, waited }
    }

    /// A request of a caller who is known.
    pub fn of(report: R, caller: Caller) -> Self {
        let mut visit = Self::new(report);
        visit.caller = Some(caller);
        visit
    }

    /// Notes that the work of the request begins later, when [`Self::begins`] says so.
    pub fn waits(&mut self) {
        self.time = Time::Waits;
    }

    /// Notes that the work begins now.
    pub fn begins(&mut self) {
        self.time = Time::Since(Instant::now());
    }

    /// Notes how long it stood in a queue because it asked to.
    pub fn waited(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// Notes that the work is over. The answer may have to wait for others.
    pub fn done(&mut self) {
        if let Time::Since(began) = self.time {
            self.time = Time::Took(began.elapsed());
        }
    }

    /// Finds who sent it from `host`, counts it, and checks that the caller may send it. Of what was done before, only the right is checked
    /// again, and the caller if there are new rules.
    ///
    /// # Errors
    /// It may not. The request is not done.
    pub fn admit(&mut self, proof: Proof, host: Option<IpAddr>, right: Right) -> Result<(), Failure> {
        self.right = right;
        self.identify(proof, host, right)?;
        if self.cost == 0 {
            self.report.service().usages.count_request(self.caller().principal())?;
            self.cost = 1;
        }
        self.caller().check(right)
    }

    fn identify(&mut self, proof: Proof, host: Option<IpAddr>, right: Right) -> Result<(), Failure> {
        if right == Right::Public {
            return Ok(());
        }
        let identified = match self.caller.take() {
            None => self.report.service().caller(proof).map(|caller| caller.at(host)),
            Some(caller) => caller.renewed().unwrap_or(Ok(caller)),
        };
        match identified {
            Ok(caller) => self.caller = Some(caller),
            Err(_) if right == Right::Stranger => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Checks under the access rules in use now that the caller may send it: they may have changed while its body arrived.
    ///
    /// # Errors
    /// It may not. The request is not done.
    pub fn check_again(&mut self) -> Result<(), Failure> {
        self.renew()?;
        self.caller().check(self.right)
    }

    /// Who sent it. Whoever is not known may do nothing.
    pub fn caller(&self) -> &Caller {
        self.caller.as_ref().unwrap_or(&ANYBODY)
    }

    /// Goes on under the access rules in use now; `true` if they are new.
    pub(crate) fn renew(&mut self) -> Result<bool, Failure> {
        self.caller.as_mut().map_or(Ok(false), Caller::renew)
    }

    /// What the door knows of it.
    pub fn report(&self) -> &R {
        &self.report
    }

    /// What the door knows of it, to add more.
    pub fn report_mut(&mut self) -> &mut R {
        &mut self.report
    }

    /// For how many requests it was counted.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Counts the bytes that it came with.
    ///
    /// # Errors
    /// What is allowed is used up.
    pub fn arrived(&mut self, bytes: usize) -> Result<(), Failure> {
        let bytes = bytes.min(MOST_BYTES) / BYTES_OF_A_REQUEST;
        self.add(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts `more` requests, for work that is about to be done.
    ///
    /// # Errors
    /// What is allowed is used up, otherwise than by the bytes and the scripts of this request.
    pub fn add(&mut self, more: usize) -> Result<(), Failure> {
        if more > 0 {
            self.report.service().usages.count_more(
                self.caller().principal(),
                more,
                self.bytes + self.steps,
            )?;
            self.cost += more;
        }
        Ok(())
    }

    /// Raises what it has cost to `requests`.
    ///
    /// # Errors
    /// As of [`Self::add`].
    pub(crate) fn costs(&mut self, requests: usize) -> Result<(), Failure> {
        self.add(requests.saturating_sub(self.cost))
    }

    /// Raises what its scripts have cost to `requests`, after they ran.
    pub fn ran(&mut self, requests: usize) {
        let more = requests.saturating_sub(self.steps);
        self.steps += more;
        self.cost += more;
        self.report.service().usages.count_done(self.caller().principal(), more);
    }

    /// Counts `bytes` that its answer shows.
    pub fn shows(&self, bytes: usize) {
        self.report.service().count_read(self.caller(), bytes);
    }

    /// The request is answered.
    pub fn answered(mut self, ending: Ending) {
        self.end(ending);
    }

    /// The request is answered. Then holds a client back that came too soon; calls `rests` before, as its connection may be closed meanwhile.
    pub async fn ended(mut self, ending: Ending, rests: impl FnOnce()) {
        self.end(ending);
        if ending == Ending::Limited {
            rests();
            self.report.service().usages.hold_back(self.caller().principal()).await;
        }
    }

    /// Measures and logs the end, once.
    fn end(&mut self, ending: Ending) {
        self.done();
        let Time::Took(took) = std::mem::replace(&mut self.time, Time::Waits) else { return };
        self.report.measure(took);
        let slow = took.saturating_sub(self.waited);
        let line =
            self.report.may_log(ending).then(|| self.report.service().log.take(ending, slow)).flatten();
        if let Some((what, untold)) = line {
            let principal = self.caller().name().map(|name| name.as_str());
            let [took_ms, waited_ms] = [took, self.waited].map(|time| time.as_millis() as u64);
            self.report.log(&RequestLine { what, took_ms, waited_ms, principal, untold });
        }
    }
}

impl<R: Report> Drop for Visit<R> {
    fn drop(&mut self) {
        self.end(Ending::Abandoned);
    }
}
