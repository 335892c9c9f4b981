/** Locks of ShedLock, as leases with fencing tokens. */
package dev.ringfence.shedlock;
