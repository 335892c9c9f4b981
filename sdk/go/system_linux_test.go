package ringfence

import (
	"testing"
	"time"
)

func TestAClockThatIsForbiddenLaterGoesOn(t *testing.T) {
	reading, isAllowed := Moment{}.after(time.Hour), true
	clock := newSystemClock(func() (Moment, bool) { return reading, isAllowed })
	// The machine has slept: the runtime has not counted that.
	reading = reading.after(time.Hour)
	before := clock.now()
	isAllowed = false
	time.Sleep(time.Millisecond)
	if late := clock.now().since(before); late < time.Millisecond || late > time.Minute {
		t.Error("it jumps by ", late)
	}
	isAllowed = true
	if clock.now() != reading {
		t.Error("it is not read any more")
	}
}

func TestAClockThatIsForbiddenAtFirstIsNeverRead(t *testing.T) {
	reading, isAllowed := Moment{}, false
	clock := newSystemClock(func() (Moment, bool) { return reading, isAllowed })
	before := clock.now()
	reading, isAllowed = before.after(time.Hour), true
	if late := clock.now().since(before); late > time.Minute {
		t.Error("it jumps by ", late)
	}
}
