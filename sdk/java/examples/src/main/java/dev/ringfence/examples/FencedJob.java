package dev.ringfence.examples;

import dev.ringfence.Claim;
import dev.ringfence.Lease;
import dev.ringfence.LostException;
import dev.ringfence.Ringfence;
import java.time.Duration;
import java.util.Optional;
import org.quartz.Job;
import org.quartz.JobExecutionContext;
import org.quartz.JobExecutionException;
import org.quartz.JobKey;

/**
 * A job of Quartz that runs on one of many schedulers, with a fencing token. The schedulers need no database: each has the same triggers,
 * and the client in its context, as {@code scheduler.getContext().put(FencedJob.CLIENT, client)}.
 */
public abstract class FencedJob implements Job {
  /** The name of the client in the context of the scheduler. */
  public static final String CLIENT = "ringfence";
  /** More than the clocks of the machines differ by, and less than the time between two runs. */
  private static final Duration CLOCKS_DIFFER_BY = Duration.ofSeconds(20);

  /** For Quartz. */
  protected FencedJob() {}

  /**
   * Does the work.
   *
   * @param context that of Quartz
   * @param lease its token goes with every access; if it is lost, the thread is interrupted
   * @throws Exception if it fails
   */
  protected abstract void run(JobExecutionContext context, Lease lease) throws Exception;

  @Override
  public final void execute(JobExecutionContext context) throws JobExecutionException {
    try {
      JobKey job = context.getJobDetail().getKey();
      String key = Claim.keyOf("quartz/", job.getGroup(), job.getName());
      Ringfence client = (Ringfence) context.getScheduler().getContext().get(CLIENT);
      // Another scheduler that fires a little later finds the key held, and leaves it at that.
      Optional<Lease> granted = client.lock(key).holdAtLeast(CLOCKS_DIFFER_BY).interruptOnLoss().tryAcquire();
      if (granted.isPresent()) {
        runUnder(granted.get(), context);
      }
    } catch (LostException lost) {
      throw new JobExecutionException("the job may have met another one: " + lost.getMessage(), lost);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new JobExecutionException("the job was interrupted", stopped);
    } catch (JobExecutionException told) {
      throw told;
    } catch (Exception error) {
      throw new JobExecutionException("the job has failed", error);
    }
  }

  private void runUnder(Lease granted, JobExecutionContext context) throws Exception {
    Exception failure = null;
    try (Lease lease = granted) {
      try {
        run(context, lease);
      } catch (Exception error) {
        failure = error;
      }
    } catch (LostException lost) {
      // Under the job, which may have failed only for that, as by our interrupt.
      throw lost(lost, failure == null ? lost : failure);
    }
    if (failure != null) {
      throw failure;
    }
  }

  /** What the job wants of its triggers stays as it is. */
  private static JobExecutionException lost(LostException lost, Exception cause) {
    JobExecutionException told =
        new JobExecutionException("the job may have met another one: its lease was lost: " + lost.reason(), cause);
    if (cause instanceof JobExecutionException wanted) {
      told.setRefireImmediately(wanted.refireImmediately());
      told.setUnscheduleAllTriggers(wanted.unscheduleAllTriggers());
      told.setUnscheduleFiringTrigger(wanted.unscheduleFiringTrigger());
    }
    return told;
  }
}
