package ringfence

import (
	"testing"
	"time"
)

func TestAClockThatIsForbiddenLaterGoesOnAndNeverBack(t *testing.T) {
	reading, isAllowed := Moment{}.after(time.Hour), true
	clock := newSystemClock(func() (Moment, bool) { return reading, isAllowed })
	// The machine has slept: the runtime has not counted that.
	reading = reading.after(time.Hour)
	before := clock.now()
	isAllowed = false
	time.Sleep(time.Millisecond)
	forbidden := clock.now()
	if late := forbidden.since(before); late < time.Millisecond || late > time.Minute {
		t.Error("it jumps by ", late)
	}
	// The reading has stood still.
	isAllowed = true
	if now := clock.now(); now.Boot < forbidden.Boot || now.Raw < forbidden.Raw {
		t.Error("it goes back to ", now)
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
