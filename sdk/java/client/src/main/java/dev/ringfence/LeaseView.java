package dev.ringfence;

import java.util.List;

/**
 * A lease, as hooks see it. Its id is a secret.
 *
 * @param keys its keys, in the order of the request
 * @param token its token
 */
public record LeaseView(List<String> keys, long token) {}
