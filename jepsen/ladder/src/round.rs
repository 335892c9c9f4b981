//! One round: the referee with its holders, its register, and the servers that the stage has.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::time::{Instant, sleep};

use crate::actor::Actor;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::judge::Counts;
use crate::moves::{Move, What};
use crate::register::{Register, STOCK};
use crate::rung::{Rung, Setting, Stage};
use crate::step::{Answer, Step};

/// How long a client waits for an answer that is not to be lost.
const PATIENT: Duration = Duration::from_secs(10);
/// How long it waits for one that is.
const IMPATIENT: Duration = Duration::from_millis(300);
/// How long to wait before the next try.
const AGAIN: Duration = Duration::from_millis(20);
/// The time to live where a round is not to wait for its end.
const LONG: Duration = Duration::from_secs(60);
/// The longest time to live whose end a round may wait for.
const SHORT: Duration = Duration::from_secs(4);
/// How long a definite answer of servers that fail over may take.
const DEFINITE: Duration = Duration::from_secs(40);

/// A round.
pub(crate) struct Round<'a> {
    pub(crate) rung: Rung,
    pub(crate) fault: Fault,
    pub(crate) stage: &'a dyn Stage,
    key: String,
    register: Register,
    began: Instant,
    actors: Vec<Actor>,
    moves: Vec<Move>,
    begins: usize,
    holders_clock: Option<Clock>,
}

/// What a round comes to.
pub(crate) struct Told {
    pub(crate) moves: Vec<Move>,
    /// How many moves were before those of the fault.
    pub(crate) begins: usize,
    pub(crate) counts: Counts,
}

impl<'a> Round<'a> {
    /// Starts three holders, with this time to live.
    pub(crate) async fn start(
        rung: Rung,
        fault: Fault,
        stage: &'a dyn Stage,
        number: u32,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let key = format!("stock-{}-{}-{number}", rung.number, fault.name().replace(' ', "-"));
        let register = Register::open(STOCK).await?;
        let holders_clock = match fault {
            Fault::HolderBehind => Some(Clock::new(folder, &format!("holder-{}-{number}", rung.number))?),
            _ => None,
        };
        let mut actors = Vec::new();
        for name in ["A", "B", "C"] {
            let setting = Setting {
                rung: rung.number,
                name: name.to_owned(),
                servers: stage.servers(),
                key: key.clone(),
                ttl_ms: u64::try_from(ttl(&rung, fault).as_millis())?,
                register: register.address(),
                is_mistaken: fault.is_with_mistake() && name == "A",
            };
            let clock = holders_clock.as_ref().filter(|_| name == "A");
            actors.push(Actor::start(&setting, clock).await?);
        }
        let began = Instant::now();
        Ok(Self {
            rung,
            fault,
            stage,
            key,
            register,
            began,
            actors,
            moves: Vec::new(),
            begins: 0,
            holders_clock,
        })
    }

    /// The time to live of the locks in this round.
    pub(crate) fn ttl(&self) -> Duration {
        ttl(&self.rung, self.fault)
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("no round lasts for 500,000 years")
    }

    /// What comes now is the fault's: what was before, is alike for all.
    pub(crate) fn begin(&mut self) {
        self.begins = self.moves.len();
    }

    /// When a lock ends that is renewed no more from now on. One without an end should be free now.
    pub(crate) fn end_us(&self) -> u64 {
        let ttl_us = u64::try_from(self.ttl().as_micros()).unwrap_or(0);
        self.now_us() + if self.rung.expires() { ttl_us } else { 0 }
    }

    /// What happened, and what it comes to.
    pub(crate) async fn finish(mut self) -> anyhow::Result<Told> {
        let count = match self.stage.count(&self.key).await? {
            Some(count) => count,
            None => self.register.count(),
        };
        let counts = Counts::of(&mut self.moves, count - STOCK);
        Ok(Told { moves: self.moves, begins: self.begins, counts })
    }

    /// A holder does a step.
    pub(crate) async fn ask(&mut self, who: char, step: Step) -> anyhow::Result<Answer> {
        let from_us = self.now_us();
        let answer = self.actor(who)?.step(&step).await?;
        self.push(who, from_us, What::Step { step, answer: answer.clone() });
        Ok(answer)
    }

    /// A holder tries once to acquire.
    pub(crate) async fn acquire(&mut self, who: char) -> anyhow::Result<Answer> {
        self.ask(who, patient_acquire()).await
    }

    /// A holder acquires the lock, which nobody holds.
    pub(crate) async fn granted(&mut self, who: char) -> anyhow::Result<()> {
        match self.acquire(who).await? {
            Answer::Granted { .. } => Ok(()),
            answer => bail!("{who} should be granted a free lock: {answer}"),
        }
    }

    /// A holder acquires, or releases, and the answer is lost.
    pub(crate) async fn unanswered(&mut self, who: char, step: Step) -> anyhow::Result<Answer> {
        let before = self.stage.answers_lost();
        self.stage.lose_next_answer();
        let answer = self.ask(who, step).await?;
        let lost = self.stage.answers_lost() - before;
        ensure!(lost > 0, "no answer was lost");
        self.note(if lost == 1 {
            "the answer was lost".to_owned()
        } else {
            format!("{lost} answers were lost")
        });
        Ok(answer)
    }

    /// A holder acquires, and its request does not arrive before [`Round::deliver`].
    pub(crate) async fn undelivered(&mut self, who: char, step: Step) -> anyhow::Result<Answer> {
        let fronts = self.stage.fronts_of_a_request();
        ensure!(!fronts.is_empty(), "these servers have no proxy that can hold a request up");
        fronts.iter().for_each(|front| front.hold_next_request());
        let answer = self.ask(who, step).await?;
        ensure!(fronts.iter().all(|front| front.held() == 1), "no request was held up");
        self.note("the request was held up".to_owned());
        Ok(answer)
    }

    /// Delivers the requests that were held up, and waits until they are answered.
    pub(crate) async fn deliver(&mut self) -> anyhow::Result<()> {
        let fronts = self.stage.fronts_of_a_request();
        fronts.iter().for_each(|front| front.deliver());
        let answered = async || fronts.iter().all(|front| front.held() == 0).then_some(());
        ringfence_harness::until(PATIENT, "the late request is answered", answered).await?;
        self.note("the late request was delivered, and the server has answered it".to_owned());
        Ok(())
    }

    /// A holder tries until it is answered whether it has the lock.
    pub(crate) async fn definite(&mut self, who: char) -> anyhow::Result<Answer> {
        let (from_us, deadline) = (self.now_us(), Instant::now() + DEFINITE);
        loop {
            let answer = self.actor(who)?.step(&patient_acquire()).await?;
            match answer {
                Answer::Unsure { .. } | Answer::Refused { .. } if Instant::now() < deadline => {
                    sleep(AGAIN).await
                }
                answer => {
                    self.push(who, from_us, What::Step { step: patient_acquire(), answer: answer.clone() });
                    return Ok(answer);
                }
            }
        }
    }

    /// A holder tries until it is granted a lock that should be free from `free_us` on; for three times to live at most.
    /// Returns whether it was.
    pub(crate) async fn wait(&mut self, who: char, free_us: u64) -> anyhow::Result<bool> {
        let (from_us, mut attempts) = (self.now_us(), 0);
        let limit_us = free_us.max(from_us) + 3 * u64::try_from(self.ttl().min(SHORT).as_micros())?;
        loop {
            let answer = self.actor(who)?.step(&patient_acquire()).await?;
            attempts += 1;
            let is_granted = matches!(answer, Answer::Granted { .. });
            if is_granted || self.now_us() > limit_us {
                let stuck = if is_granted { None } else { Some(self.stage.state(&self.key).await?) };
                self.push(who, from_us, What::Wait { attempts, free_us, answer, stuck });
                return Ok(is_granted);
            }
            sleep(AGAIN).await;
        }
    }

    /// The same while a holder stands still: being stuck lasts no longer than that, so the move is noted by the wait after it.
    pub(crate) async fn wait_beside_paused(&mut self, who: char) -> anyhow::Result<bool> {
        let before = self.moves.len();
        let end_us = self.end_us();
        let is_granted = self.wait(who, end_us).await?;
        if !is_granted {
            self.moves.truncate(before);
        }
        Ok(is_granted)
    }

    /// A holder reads, and then writes.
    pub(crate) async fn works(&mut self, who: char) -> anyhow::Result<()> {
        self.ask(who, Step::Read).await?;
        self.ask(who, Step::Write).await.map(drop)
    }

    pub(crate) async fn release(&mut self, who: char) -> anyhow::Result<Answer> {
        self.ask(who, patient_release()).await
    }

    pub(crate) async fn kill(&mut self, who: char) -> anyhow::Result<()> {
        let from_us = self.now_us();
        self.actor(who)?.kill().await?;
        self.push(who, from_us, What::Killed);
        Ok(())
    }

    /// Tells a holder what to do and kills it when the answer that it waits for is lost.
    pub(crate) async fn kill_in_acquire(&mut self, who: char) -> anyhow::Result<()> {
        let before = self.stage.answers_lost();
        self.stage.lose_next_answer();
        self.actor(who)?.tell(&patient_acquire()).await?;
        let stage = self.stage;
        let lost = async || (stage.answers_lost() > before).then_some(());
        ringfence_harness::until(PATIENT, "the first answer is lost", lost).await?;
        self.note("killed while it waits for the first answer of its acquire".into());
        self.kill(who).await
    }

    pub(crate) async fn stop(&mut self, who: char) -> anyhow::Result<()> {
        let from_us = self.now_us();
        self.actor(who)?.stop().await?;
        self.push(who, from_us, What::Stopped);
        Ok(())
    }

    pub(crate) fn resume(&mut self, who: char) -> anyhow::Result<()> {
        let from_us = self.now_us();
        self.actor(who)?.resume()?;
        self.push(who, from_us, What::Resumed);
        Ok(())
    }

    /// Makes a fault of the servers happen.
    pub(crate) async fn inflict(&mut self) -> anyhow::Result<()> {
        let from_us = self.now_us();
        let observed = self.stage.inflict(self.fault).await.context("the fault was not observed")?;
        self.push('S', from_us, What::Fault { observed });
        Ok(())
    }

    /// Throws the clock of the first holder, and sees that it was thrown.
    pub(crate) async fn throw_clock(&mut self, offset_s: i64) -> anyhow::Result<()> {
        let before = self.time('A').await?;
        self.holders_clock.as_ref().context("this round has no clock to throw")?.throw(offset_s)?;
        let moved = self.time('A').await? - before;
        ensure!((moved - offset_s).abs() < 600, "the clock of A has moved by {moved} s");
        self.note(format!("the clock of A has moved by {moved} s"));
        Ok(())
    }

    async fn time(&mut self, who: char) -> anyhow::Result<i64> {
        match self.actor(who)?.step(&Step::Report).await? {
            Answer::Report { unix_s, .. } => Ok(unix_s),
            answer => bail!("{who} does not report: {answer}"),
        }
    }

    fn note(&mut self, observed: String) {
        let now_us = self.now_us();
        self.push('S', now_us, What::Fault { observed });
    }

    fn push(&mut self, who: char, from_us: u64, what: What) {
        let to_us = self.now_us();
        self.moves.push(Move { who, from_us, to_us, what, flag: None });
    }

    fn actor(&mut self, who: char) -> anyhow::Result<&mut Actor> {
        self.actors.iter_mut().find(|actor| actor.name == who).with_context(|| format!("there is no {who}"))
    }
}

/// Rounds that wait for the end of a lock have a short time to live. A lost answer takes some of it before the work begins,
/// and a clock has to be thrown before it is over.
fn ttl(rung: &Rung, fault: Fault) -> Duration {
    match fault {
        Fault::Crash | Fault::PauseBeforeWrite | Fault::PauseBeforeRead | Fault::RenewalDies => rung.ttl(),
        Fault::HolderBehind if rung.checks_clock() => rung.ttl(),
        Fault::LostAcquire | Fault::LateAcquire | Fault::LostAcquireUnnamed | Fault::ServerBehind => {
            2 * rung.ttl()
        }
        _ => LONG,
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn patient_acquire() -> Step {
    Step::Acquire { within_ms: ms(PATIENT) }
}

pub(crate) fn patient_release() -> Step {
    Step::Release { within_ms: ms(PATIENT) }
}

/// An acquire whose answer is to be lost.
pub(crate) fn impatient_acquire() -> Step {
    Step::Acquire { within_ms: ms(IMPATIENT) }
}

/// A release whose answer is to be lost.
pub(crate) fn impatient_release() -> Step {
    Step::Release { within_ms: ms(IMPATIENT) }
}
