/** Locks of Spring Integration, as leases with fencing tokens. */
package dev.ringfence.spring;
