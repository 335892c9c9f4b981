package ringfence

import (
	"testing"
	"time"
)

// A machine whose clocks stand still, and may be forbidden.
type machine struct {
	read        Moment
	isForbidden bool
	runtime     reading
}

func (m *machine) clock() *systemClock {
	return newSystemClock(func() (Moment, bool) { return m.read, !m.isForbidden }, func() reading { return m.runtime })
}

func (m *machine) sleeps(d time.Duration) {
	m.read = m.read.after(d)
	m.runtime.wall += d
}

func (m *machine) runs(d time.Duration) {
	m.sleeps(d)
	m.runtime.monotonic += d
}

func TestAClockThatIsForbiddenLaterGoesOnAndNeverBack(t *testing.T) {
	m := machine{read: at(3_600_000)}
	clock := m.clock()
	m.sleeps(time.Hour)
	before := clock.now()
	m.isForbidden = true
	m.runs(time.Minute)
	m.sleeps(time.Hour)
	forbidden := clock.now()
	if late := forbidden.since(before); late != time.Hour+time.Minute {
		t.Error("it has gone on by ", late)
	}
	// As a time service does.
	m.runtime.wall -= time.Hour
	m.isForbidden = false
	if now := clock.now(); now != forbidden {
		t.Error("it has gone from ", forbidden, " to ", now)
	}
	for range 1000 {
		m.runs(time.Second)
		m.runtime.wall += leap / 2
		clock.now()
	}
	if late := clock.now().since(forbidden); late != 1000*time.Second {
		t.Error("what the wall clock is slewed by counts as sleep: ", late)
	}
}

func TestAClockThatIsForbiddenAtFirstIsNeverRead(t *testing.T) {
	m := machine{isForbidden: true}
	clock := m.clock()
	before := clock.now()
	m.isForbidden = false
	m.read = at(3_600_000)
	if now := clock.now(); now != before {
		t.Error("it has gone from ", before, " to ", now)
	}
}

func TestAPauseWhileClocksAreReadTakesNoneBack(t *testing.T) {
	m := machine{read: at(1_000)}
	clock := m.clock()
	m.read = Moment{Boot: 3 * time.Second, Raw: 0}
	if now := clock.now(); now.Boot != 3*time.Second || now.Raw != time.Second {
		t.Error("it has gone back: ", now)
	}
}
