/**
 * Leases with fencing tokens, from a Ringfence cluster: renewed while you work, and given up in time. {@link dev.ringfence.Ringfence}
 * is where to begin.
 */
package dev.ringfence;
