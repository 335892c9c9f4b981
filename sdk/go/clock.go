package ringfence

import "time"

// A Moment is an instant on two clocks, each counted from some start of its own. Two moments have no order: the clocks may disagree. An instant
// has come once it has by either clock, so what is left of a lease is never too much if one of the two is right.
type Moment struct {
	// Boot runs while the machine sleeps, and a time service may slew it.
	Boot time.Duration
	// Raw cannot be slewed. It includes the time that the machine slept.
	Raw time.Duration
}

// A Clock tells the time that leases are measured on.
type Clock func() Moment

func (m Moment) reached(other Moment) bool {
	return m.Boot >= other.Boot || m.Raw >= other.Raw
}

// since is by how much m is later than earlier, by the clock on which that is less; 0 if it is not later.
func (m Moment) since(earlier Moment) time.Duration {
	return max(0, min(m.Boot-earlier.Boot, m.Raw-earlier.Raw))
}

// sinceAtMost is the same by the clock on which that is more.
func (m Moment) sinceAtMost(earlier Moment) time.Duration {
	return max(0, m.Boot-earlier.Boot, m.Raw-earlier.Raw)
}

func (m Moment) after(d time.Duration) Moment {
	return Moment{m.Boot + d, m.Raw + d}
}

// latest is the later of two moments, by each clock.
func latest(a, b Moment) Moment {
	return Moment{max(a.Boot, b.Boot), max(a.Raw, b.Raw)}
}
