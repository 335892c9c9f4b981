package dev.ringfence;

import java.time.Duration;
import java.util.List;

/**
 * What a client tells of its leases, to whoever counts, logs or traces them. Override what you need. Hooks run one after the other,
 * on a thread that renews nothing, so they may block; nobody waits for them, not even {@code close}. One that fails stops nothing,
 * and goes to the log. A lease that was adopted was not granted here, and one that is left by its id is not released.
 */
public interface Hooks {
  /**
   * An acquire has stood in the queue, whatever came of it.
   *
   * @param keys what it was for
   * @param time for how long
   */
  default void waited(List<String> keys, Duration time) {}

  /**
   * A lease was granted.
   *
   * @param lease the lease
   * @param time so long after it was asked for
   */
  default void granted(LeaseView lease, Duration time) {}

  /**
   * A lease was renewed.
   *
   * @param lease the lease
   */
  default void renewed(LeaseView lease) {}

  /**
   * A lease could not be renewed for now.
   *
   * @param lease the lease
   * @param why what went wrong
   */
  default void failed(LeaseView lease, String why) {}

  /**
   * A lease is lost. What had to stop was told before.
   *
   * @param lease the lease
   * @param reason why
   */
  default void lost(LeaseView lease, LossReason reason) {}

  /**
   * A lease was released: by its holder, by {@code close}, or since its handle was dropped.
   *
   * @param lease the lease
   */
  default void released(LeaseView lease) {}
}
