//go:build !linux

package ringfence

import "time"

var started = time.Now()

// SystemClock is the clock of the Go runtime. It cannot jump, but may be slewed. It counts the time that the machine sleeps where the runtime's does:
// on Windows, and not on macOS. There a lease is held for too long by as much as the machine slept, and only the token protects what it guards.
func SystemClock() Moment {
	d := time.Since(started)
	return Moment{d, d}
}

// limitRetransmission does nothing: a connection that is abandoned is reset, which takes back what the kernel has not delivered.
func limitRetransmission(uintptr) error {
	return nil
}
