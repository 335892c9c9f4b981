package dev.ringfence.examples;

import dev.ringfence.HeldException;
import dev.ringfence.Lease;
import dev.ringfence.LostException;
import dev.ringfence.Ringfence;
import dev.ringfence.RingfenceException;
import java.time.Duration;
import org.quartz.Job;
import org.quartz.JobExecutionContext;
import org.quartz.JobExecutionException;
import org.quartz.SchedulerException;

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
    String key = "quartz/" + context.getJobDetail().getKey().getGroup() + "/" + context.getJobDetail().getKey().getName();
    try {
      Ringfence client = (Ringfence) context.getScheduler().getContext().get(CLIENT);
      // Another scheduler that fires a little later finds the key held, and leaves it at that.
      try (Lease lease =
          client.lock(key).waitAtMost(Duration.ZERO).holdAtLeast(CLOCKS_DIFFER_BY).interruptOnLoss().acquire()) {
        run(context, lease);
      }
    } catch (HeldException held) {
      context.setResult(held);
    } catch (LostException lost) {
      throw new JobExecutionException("the job may have met another one: " + lost.getMessage(), lost);
    } catch (RingfenceException | SchedulerException error) {
      throw new JobExecutionException(error);
    } catch (Exception error) {
      throw new JobExecutionException("the job has failed", error);
    }
  }
}
