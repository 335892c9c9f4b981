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

var (
	started = time.Now()
	system  = newSystemClock(readAll, readRuntime)
)

// SystemClock reads CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW. Once a sandbox forbids that, it goes on from the last reading for good, by the clock of the Go
// runtime, and a leap of the wall clock counts as sleep, whatever it was. A moment can be compared with any other, and it never goes back.
func SystemClock() Moment { return system.now() }

// leap is by how much the wall clock is to be ahead of the runtime's: they are not read at the same time.
const leap = 10 * time.Millisecond

// A reading of the clocks of the runtime, which no sandbox forbids.
type reading struct {
	monotonic, wall time.Duration
}

// A systemClock has one origin for good.
type systemClock struct {
	read        func() (Moment, bool)
	readRuntime func() reading

	mu          sync.Mutex
	isForbidden bool
	last        Moment
	// at is when last was read.
	at reading
}

func newSystemClock(read func() (Moment, bool), readRuntime func() reading) *systemClock {
	c := &systemClock{read: read, readRuntime: readRuntime, at: readRuntime()}
	c.now()
	return c
}

func (c *systemClock) now() Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Before the reading: a pause between the two lets what goes on from it be too late, and leases end early.
	at := c.readRuntime()
	passed := at.monotonic - c.at.monotonic
	if ahead := at.wall - c.at.wall - passed; ahead > leap {
		passed += ahead
	}
	now := c.last.after(passed)
	if !c.isForbidden {
		if own, isAllowed := c.read(); isAllowed {
			// A pause makes a reading older, perhaps than the last one.
			now = latest(own, c.last)
		} else {
			c.isForbidden = true
		}
	}
	c.last, c.at = now, at
	return now
}

func readRuntime() reading {
	at := time.Now()
	return reading{at.Sub(started), time.Duration(at.UnixNano())}
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
