package ringfence

import (
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Numbers of linux/time.h and linux/tcp.h, which package syscall lacks.
const (
	clockMonotonic    = 1
	clockMonotonicRaw = 4
	clockBoottime     = 7
	tcpUserTimeout    = 18
)

var system = newSystemClock(readAll)

// SystemClock reads CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW. Once a sandbox forbids that, it goes on from the last reading for good, by the clock of the Go
// runtime: a moment can be compared with any other, and it never goes back.
func SystemClock() Moment { return system.now() }

// A systemClock has one origin for good.
type systemClock struct {
	read func() (Moment, bool)

	mu          sync.Mutex
	isForbidden bool
	last        Moment
	// at is when last was read, by the clock of the runtime, which no sandbox forbids.
	at time.Time
}

func newSystemClock(read func() (Moment, bool)) *systemClock {
	c := &systemClock{read: read, at: time.Now()}
	c.now()
	return c
}

func (c *systemClock) now() Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Before the reading: a pause between the two lets what goes on from it be too late, and leases end early.
	at := time.Now()
	if !c.isForbidden {
		if now, isAllowed := c.read(); isAllowed {
			c.last, c.at = now, at
			return now
		}
		c.isForbidden = true
	}
	return c.last.after(at.Sub(c.at))
}

func readAll() (Moment, bool) {
	// In this order a pause between two of them makes the reading older, never newer.
	raw, okRaw := read(clockMonotonicRaw)
	boot, okBoot := read(clockBoottime)
	monotonic, ok := read(clockMonotonic)
	if !okRaw || !okBoot || !ok {
		return Moment{}, false
	}
	return Moment{boot, raw + boot - monotonic}, true
}

func read(clock uintptr) (time.Duration, bool) {
	var at syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&at)), 0)
	return time.Duration(at.Nano()), errno == 0
}

// limitRetransmission keeps the kernel from delivering what was abandoned minutes ago.
func limitRetransmission(fd uintptr) error {
	return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(retransmitted/time.Millisecond))
}
