package dev.ringfence.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import dev.ringfence.FakeCluster;
import dev.ringfence.Lease;
import dev.ringfence.Ringfence;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.quartz.Job;
import org.quartz.JobBuilder;
import org.quartz.JobExecutionContext;
import org.quartz.JobExecutionException;
import org.quartz.JobKey;
import org.quartz.Scheduler;
import org.quartz.TriggerBuilder;
import org.quartz.impl.StdSchedulerFactory;

final class FencedJobTest {
  private static final BlockingQueue<Long> RAN = new LinkedBlockingQueue<>();
  private static final BlockingQueue<String> ENDED = new LinkedBlockingQueue<>();

  /** What one run of many schedulers does. */
  public static final class Report extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) {
      RAN.add(lease.token());
    }
  }

  /** What waits until it is interrupted. */
  public static final class Wait extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) throws Exception {
      RAN.add(lease.token());
      new CountDownLatch(1).await();
    }
  }

  /** What ends for ever once it is interrupted. */
  public static final class Last extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) throws Exception {
      RAN.add(lease.token());
      try {
        new CountDownLatch(1).await();
      } catch (InterruptedException stopped) {
        JobExecutionException last = new JobExecutionException(stopped);
        last.setUnscheduleAllTriggers(true);
        throw last;
      }
    }
  }

  /** What releases its lease by itself. */
  public static final class Early extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) throws Exception {
      lease.release();
      throw new JobExecutionException("what follows has failed");
    }
  }

  /** What another interrupts. */
  public static final class Stopped extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) throws Exception {
      Thread.currentThread().interrupt();
      new CountDownLatch(1).await();
    }
  }

  /** Tells that a scheduler has fired. */
  public static final class Listener implements org.quartz.JobListener {
    @Override
    public String getName() {
      return "listener";
    }

    @Override
    public void jobToBeExecuted(JobExecutionContext context) {}

    @Override
    public void jobExecutionVetoed(JobExecutionContext context) {}

    @Override
    public void jobWasExecuted(JobExecutionContext context, JobExecutionException error) {
      String last = error != null && error.unscheduleAllTriggers() ? ", for ever" : "";
      String flag = Thread.currentThread().isInterrupted() ? ", flag" : "";
      ENDED.add(error == null ? "" : error.getMessage() + last + flag);
    }
  }

  private static Scheduler scheduler(Ringfence client, String name, Class<? extends Job> type, JobKey key)
      throws Exception {
    Properties properties = new Properties();
    properties.put("org.quartz.scheduler.instanceName", name);
    properties.put("org.quartz.threadPool.threadCount", "1");
    Scheduler scheduler = new StdSchedulerFactory(properties).getScheduler();
    scheduler.getContext().put(FencedJob.CLIENT, client);
    scheduler.getListenerManager().addJobListener(new Listener());
    scheduler.scheduleJob(
        JobBuilder.newJob(type).withIdentity(key).build(), TriggerBuilder.newTrigger().startNow().build());
    return scheduler;
  }

  private static <T> T taken(BlockingQueue<T> queue) throws InterruptedException {
    return queue.poll(60, TimeUnit.SECONDS);
  }

  @BeforeEach
  void begin() {
    RAN.clear();
    ENDED.clear();
  }

  @Test
  void aLossIsToldAndNoFlagIsLeft() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Scheduler scheduler = scheduler(client, "lost", Wait.class, new JobKey("a/b", "../c d"));
      scheduler.start();
      assertNotNull(taken(RAN));
      cluster.revoke("quartz/..%2Fc d/a%2Fb");
      assertEquals("the job may have met another one: its lease was lost: revoked", taken(ENDED));
      scheduler.shutdown();
    }
  }

  @Test
  void aJobThatIsLostStillSaysWhatBecomesOfItsTriggers() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Scheduler scheduler = scheduler(client, "last", Last.class, new JobKey("job"));
      scheduler.start();
      assertNotNull(taken(RAN));
      cluster.revoke("quartz/DEFAULT/job");
      assertEquals("the job may have met another one: its lease was lost: revoked, for ever", taken(ENDED));
      scheduler.shutdown();
    }
  }

  @Test
  void aReleaseOfItsOwnIsNoLoss() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Scheduler scheduler = scheduler(client, "early", Early.class, new JobKey("job"));
      scheduler.start();
      assertEquals("what follows has failed", taken(ENDED));
      scheduler.shutdown();
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {".", "..", "a/b", "%", "a\tb", "long"})
  void anyNameHasAKeyOfItsOwn(String name) throws Exception {
    String text = name.equals("long") ? "ä/".repeat(1_000) : name;
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Scheduler scheduler = scheduler(client, "any", Report.class, new JobKey(text + "1", text));
      scheduler.scheduleJob(
          JobBuilder.newJob(Report.class).withIdentity(new JobKey(text, text + "1")).build(),
          TriggerBuilder.newTrigger().startNow().build());
      scheduler.scheduleJob(
          JobBuilder.newJob(Report.class).withIdentity(new JobKey(text, text + "2")).build(),
          TriggerBuilder.newTrigger().startNow().build());
      scheduler.start();
      for (int i = 0; i < 3; i++) {
        assertEquals("", taken(ENDED));
      }
      assertEquals(3, RAN.size());
      scheduler.shutdown();
    }
  }

  @Test
  void anInterruptOfAnotherIsKept() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Scheduler scheduler = scheduler(client, "stopped", Stopped.class, new JobKey("job"));
      scheduler.start();
      assertEquals("the job was interrupted, flag", taken(ENDED));
      scheduler.shutdown();
    }
  }

  @Test
  void oneOfThreeSchedulersRunsIt() throws Exception {
    List<Scheduler> schedulers = new ArrayList<>();
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      for (int i = 0; i < 3; i++) {
        schedulers.add(scheduler(client, "scheduler-" + i, Report.class, new JobKey("report")));
      }
      for (Scheduler scheduler : schedulers) {
        scheduler.start();
      }
      for (int i = 0; i < 3; i++) {
        assertEquals("", taken(ENDED));
      }
      assertEquals(1, RAN.size(), "it has run more than once");
    } finally {
      for (Scheduler scheduler : schedulers) {
        scheduler.shutdown();
      }
    }
  }
}
