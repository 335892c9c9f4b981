package dev.ringfence;

import java.util.List;

/**
 * What {@link LockRequest#onLost} is told.
 *
 * @param keys the keys of the lease
 * @param token its token
 * @param reason why it is lost
 */
public record Loss(List<String> keys, long token, LossReason reason) {}
