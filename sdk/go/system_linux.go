package ringfence

import (
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

// SystemClock reads CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW. Where a sandbox forbids that, it is the clock of the Go runtime.
func SystemClock() Moment {
	// In this order a pause between two of them makes the reading older, never newer.
	raw, okRaw := read(clockMonotonicRaw)
	boot, okBoot := read(clockBoottime)
	monotonic, ok := read(clockMonotonic)
	if !okRaw || !okBoot || !ok {
		return runtimeClock()
	}
	return Moment{boot, raw + boot - monotonic}
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
