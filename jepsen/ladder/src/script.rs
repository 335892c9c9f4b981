//! The scripts: what the holders do under each fault. Each step waits for an observed condition; the only wait for time is
//! that for the end of a lock.

use anyhow::{bail, ensure};

use crate::fault::Fault;
use crate::round::{Round, impatient_acquire, impatient_release, patient_release};
use crate::step::{Answer, Step};

/// An hour.
const HOUR_S: i64 = 3_600;

/// Plays the script of the round's fault.
pub(crate) async fn play(round: &mut Round<'_>) -> anyhow::Result<()> {
    if round.fault == Fault::None {
        round.granted('A').await?;
        round.ask('A', Step::Read).await?;
        return contend(round).await;
    }
    warm_up(round).await?;
    round.begin();
    match round.fault {
        Fault::None => Ok(()),
        Fault::Crash => crash(round).await,
        Fault::PauseBeforeWrite => pause_before_write(round).await,
        Fault::PauseBeforeRead => pause_before_read(round).await,
        Fault::LostAcquire | Fault::LostAcquireUnnamed => lost_acquire(round).await,
        Fault::LateAcquire => late_acquire(round).await,
        Fault::LostRelease => lost_release(round).await,
        Fault::ServerBehind if round.rung.expires() => server_behind(round).await,
        Fault::Failover
        | Fault::FailoverToOther
        | Fault::FailoverBySentinel
        | Fault::FailoverUnseen
        | Fault::Empty
        | Fault::ServerAhead
        | Fault::ServerBehind => server_fault(round).await,
        Fault::RenewalDies => renewal_dies(round).await,
        Fault::HolderBehind if round.rung.checks_clock() => validity_by_wrong_clock(round).await,
        Fault::HolderBehind => holder_behind(round).await,
    }
}

/// Without a fault the lock works: each of the holders gets it, and the other one does not get it meanwhile.
async fn warm_up(round: &mut Round<'_>) -> anyhow::Result<()> {
    for (holder, other) in [('A', 'B'), ('B', 'A')] {
        round.granted(holder).await?;
        match round.acquire(other).await? {
            Answer::Held => {}
            answer => bail!("without a fault {other} should not get what {holder} holds: {answer}"),
        }
        round.works(holder).await?;
        round.release(holder).await?;
    }
    Ok(())
}

async fn crash(round: &mut Round<'_>) -> anyhow::Result<()> {
    if round.rung.acquires_in_two_steps() {
        round.kill_in_acquire('A').await?;
    } else {
        round.granted('A').await?;
        round.ask('A', Step::Read).await?;
        round.kill('A').await?;
    }
    let now_us = round.now_us();
    takes_over(round, now_us).await
}

/// B waits for the lock, which should be free from `free_us` on, and works.
async fn takes_over(round: &mut Round<'_>, free_us: u64) -> anyhow::Result<()> {
    if round.wait('B', free_us).await? {
        round.works('B').await?;
        round.release('B').await?;
    }
    Ok(())
}

async fn pause_before_write(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.granted('A').await?;
    round.ask('A', Step::Read).await?;
    round.ask('A', Step::Check).await?;
    round.stop('A').await?;
    let stopped_us = round.now_us();
    let is_granted = round.wait_beside_paused('B').await?;
    if is_granted {
        round.works('B').await?;
    }
    round.resume('A')?;
    round.ask('A', Step::Write).await?;
    afterwards(round, is_granted, stopped_us).await
}

async fn pause_before_read(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.granted('A').await?;
    round.ask('A', Step::Check).await?;
    round.stop('A').await?;
    let stopped_us = round.now_us();
    let is_granted = round.wait_beside_paused('B').await?;
    if is_granted {
        round.ask('B', Step::Read).await?;
    }
    round.resume('A')?;
    round.works('A').await?;
    if is_granted {
        round.ask('B', Step::Write).await?;
    }
    afterwards(round, is_granted, stopped_us).await
}

/// B has the lock already, or gets it as soon as A, which was paused, has released it.
async fn afterwards(round: &mut Round<'_>, is_granted: bool, stopped_us: u64) -> anyhow::Result<()> {
    round.release('A').await?;
    if !is_granted && round.wait('B', stopped_us).await? {
        round.works('B').await?;
    }
    round.release('B').await.map(drop)
}

async fn lost_acquire(round: &mut Round<'_>) -> anyhow::Result<()> {
    if let Answer::Granted { .. } = round.unanswered('A', impatient_acquire()).await? {
        round.works('A').await?;
        round.release('A').await?;
    }
    let now_us = round.now_us();
    takes_over(round, now_us).await
}

/// The request of A arrives when A has given it up, or was granted the lock by another one, and B has had the lock.
async fn late_acquire(round: &mut Round<'_>) -> anyhow::Result<()> {
    if let Answer::Granted { .. } = round.undelivered('A', impatient_acquire()).await? {
        round.works('A').await?;
        round.release('A').await?;
    }
    let now_us = round.now_us();
    if !round.wait('B', now_us).await? {
        return Ok(());
    }
    round.works('B').await?;
    round.release('B').await?;
    round.deliver().await?;
    let now_us = round.now_us();
    if round.wait('C', now_us).await? {
        round.works('C').await?;
    }
    Ok(())
}

async fn lost_release(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.granted('A').await?;
    round.works('A').await?;
    round.unanswered('A', impatient_release()).await?;
    let now_us = round.now_us();
    if !round.wait('B', now_us).await? {
        return Ok(());
    }
    round.ask('B', Step::Read).await?;
    // It was not told that its release has worked.
    round.release('A').await?;
    if let Answer::Granted { .. } = round.definite('C').await? {
        round.works('C').await?;
        round.ask('B', Step::Write).await?;
        round.release('C').await?;
    } else {
        round.ask('B', Step::Write).await?;
    }
    round.release('B').await.map(drop)
}

/// The servers fail while A holds the lock.
async fn server_fault(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.stage.prepare(round.fault).await?;
    let is_granted = matches!(round.acquire('A').await?, Answer::Granted { .. });
    if is_granted {
        round.ask('A', Step::Read).await?;
    }
    round.inflict().await?;
    if is_granted {
        return contend(round).await;
    }
    let now_us = round.now_us();
    takes_over(round, now_us).await
}

/// A holds the lock and has read. B tries to get it.
async fn contend(round: &mut Round<'_>) -> anyhow::Result<()> {
    let is_granted = matches!(round.definite('B').await?, Answer::Granted { .. });
    if is_granted {
        round.works('B').await?;
    }
    if round.rung.is_renewed() {
        insist(round, 'A', Step::Touch).await?;
    }
    round.ask('A', Step::Write).await?;
    insist(round, 'A', patient_release()).await?;
    let now_us = round.now_us();
    if !is_granted && round.wait('B', now_us).await? {
        round.works('B').await?;
    }
    round.release('B').await.map(drop)
}

/// A holder does a step, and again if it does not know what came of it: its connection may have broken with the server.
async fn insist(round: &mut Round<'_>, who: char, step: Step) -> anyhow::Result<()> {
    if let Answer::Unsure { .. } = round.ask(who, step.clone()).await? {
        round.ask(who, step).await?;
    }
    Ok(())
}

/// A crashes, and before its lock has ended a server's clock falls behind: so no renewal comes in between. What the crash
/// alone costs is not counted here.
async fn server_behind(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.stage.prepare(round.fault).await?;
    let mut ends_us = round.end_us();
    round.granted('A').await?;
    round.ask('A', Step::Read).await?;
    if round.rung.is_renewed() {
        ends_us = round.end_us();
        round.ask('A', Step::Touch).await?;
    }
    round.kill('A').await?;
    let end_us = round.end_us();
    round.inflict().await?;
    ensure!(round.now_us() < ends_us, "the fault was not observed before the lock could have ended");
    takes_over(round, end_us).await
}

async fn renewal_dies(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.granted('A').await?;
    round.ask('A', Step::Read).await?;
    round.ask('A', Step::Check).await?;
    round.ask('A', Step::StopRenewing).await?;
    let end_us = round.end_us();
    if round.wait('B', end_us).await? {
        round.works('B').await?;
    }
    round.ask('A', Step::Write).await?;
    round.release('A').await?;
    round.release('B').await.map(drop)
}

/// The holder's clock says nothing to anybody.
async fn holder_behind(round: &mut Round<'_>) -> anyhow::Result<()> {
    round.granted('A').await?;
    round.ask('A', Step::Read).await?;
    round.throw_clock(-HOUR_S).await?;
    contend(round).await
}

/// The client counts how long it may work by its clock. First with a clock that is right: then it stops in time.
async fn validity_by_wrong_clock(round: &mut Round<'_>) -> anyhow::Result<()> {
    for is_wrong in [false, true] {
        round.granted('A').await?;
        if is_wrong {
            round.throw_clock(-HOUR_S).await?;
        }
        round.ask('A', Step::StopRenewing).await?;
        let end_us = round.end_us();
        if !round.wait('B', end_us).await? {
            bail!("the lock of A has not ended");
        }
        round.ask('B', Step::Read).await?;
        let counts_itself_holder = round.ask('A', Step::Check).await? == Answer::Alive;
        if counts_itself_holder && !is_wrong {
            bail!("with a clock that is right, A should have stopped in time");
        }
        if counts_itself_holder {
            round.ask('A', Step::Read).await?;
        }
        round.ask('B', Step::Write).await?;
        if counts_itself_holder {
            round.ask('A', Step::Write).await?;
        }
        round.release('A').await?;
        round.release('B').await?;
    }
    Ok(())
}
