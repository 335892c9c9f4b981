package dev.ringfence.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.ringfence.FakeCluster;
import dev.ringfence.Lease;
import dev.ringfence.Ringfence;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.Test;
import org.quartz.JobBuilder;
import org.quartz.JobExecutionContext;
import org.quartz.Scheduler;
import org.quartz.TriggerBuilder;
import org.quartz.impl.StdSchedulerFactory;

final class FencedJobTest {
  private static final BlockingQueue<Long> RAN = new LinkedBlockingQueue<>();
  private static final BlockingQueue<Object> ENDED = new LinkedBlockingQueue<>();

  /** What one run of many schedulers does. */
  public static final class Report extends FencedJob {
    @Override
    protected void run(JobExecutionContext context, Lease lease) {
      RAN.add(lease.token());
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
    public void jobWasExecuted(JobExecutionContext context, org.quartz.JobExecutionException error) {
      ENDED.add(error == null ? "" : error);
    }
  }

  @Test
  void oneOfThreeSchedulersRunsIt() throws Exception {
    List<Scheduler> schedulers = new ArrayList<>();
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      for (int i = 0; i < 3; i++) {
        Properties properties = new Properties();
        properties.put("org.quartz.scheduler.instanceName", "scheduler-" + i);
        properties.put("org.quartz.threadPool.threadCount", "1");
        Scheduler scheduler = new StdSchedulerFactory(properties).getScheduler();
        scheduler.getContext().put(FencedJob.CLIENT, client);
        scheduler.getListenerManager().addJobListener(new Listener());
        scheduler.scheduleJob(
            JobBuilder.newJob(Report.class).withIdentity("report").build(),
            TriggerBuilder.newTrigger().startNow().build());
        schedulers.add(scheduler);
      }
      for (Scheduler scheduler : schedulers) {
        scheduler.start();
      }
      for (int i = 0; i < 3; i++) {
        assertEquals("", ENDED.take());
      }
      assertEquals(1, RAN.size(), "it has run more than once");
    } finally {
      for (Scheduler scheduler : schedulers) {
        scheduler.shutdown();
      }
    }
  }
}
