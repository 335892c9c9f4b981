package ringfence

import (
	"testing"
	"time"
)

func grantFor(ttl time.Duration, at Moment) confirmation {
	return confirmation{grant{leaseID: "id", token: 7, ttl: ttl, expiresIn: ttl, keys: []grantedKey{{"a", 7}}}, at}
}

func at(ms int) Moment {
	return Moment{}.after(time.Duration(ms) * time.Millisecond)
}

func TestALeaseIsHeldThenUnsureThenLost(t *testing.T) {
	l := newLifetime(grantFor(10*time.Second, at(0)), true, forever)
	for _, one := range []struct {
		ms    int
		state State
	}{{0, Held}, {6_000, Held}, {6_700, Unsure}, {9_900, Unsure}, {9_970, Lost}, {100_000, Lost}} {
		if got := l.stateAt(at(one.ms)); got != one.state {
			t.Errorf("after %d ms it is %s, not %s", one.ms, got, one.state)
		}
	}
	if in := l.renewIn(at(0)); in > 10*time.Second/3 {
		t.Errorf("it is due to be renewed only after %v", in)
	}
}

func TestItHasEndedOnceItHasByEitherClock(t *testing.T) {
	l := newLifetime(grantFor(10*time.Second, at(0)), true, forever)
	for _, now := range []Moment{{Boot: 11 * time.Second}, {Raw: 11 * time.Second}} {
		if loss := l.lossAt(now); loss != Unconfirmed {
			t.Errorf("at %v it is %q", now, loss)
		}
		if left := l.remaining(now); left != 0 {
			t.Errorf("at %v %v are left", now, left)
		}
	}
}

func TestALateConfirmationRevivesNothing(t *testing.T) {
	l := newLifetime(grantFor(time.Second, at(0)), true, forever)
	if next, isNews := l.confirmed(grantFor(time.Minute, at(500)), at(2_000)); isNews || next.lossAt(at(2_000)) == "" {
		t.Error("it lives again")
	}
}

func TestAnOlderConfirmationChangesNoFence(t *testing.T) {
	l := newLifetime(grantFor(time.Minute, at(0)), true, forever)
	newer := grantFor(time.Minute, at(2_000))
	newer.grant.keys[0].fence = 9
	l, _ = l.confirmed(newer, at(2_100))
	l, isNews := l.confirmed(grantFor(time.Minute, at(1_000)), at(2_200))
	if isNews || l.grant.keys[0].fence != 9 {
		t.Errorf("the fence is %d", l.grant.keys[0].fence)
	}
}

func TestMaxHoldIsTheEndHoweverOftenItIsRenewed(t *testing.T) {
	l := newLifetime(grantFor(10*time.Second, at(0)), true, 12*time.Second)
	l, _ = l.confirmed(grantFor(10*time.Second, at(5_000)), at(5_000))
	if l.needsRenewals() {
		t.Error("it is renewed past its end")
	}
	if state := l.stateAt(at(11_900)); state != Held {
		t.Errorf("it is %s before its end", state)
	}
	if loss := l.lossAt(at(12_000)); loss != MaxHeld {
		t.Errorf("it is lost for %q", loss)
	}
}

func TestTheSystemClocksRun(t *testing.T) {
	before := SystemClock()
	for SystemClock().since(before) < 2*time.Millisecond {
	}
	if !SystemClock().reached(before.after(2 * time.Millisecond)) {
		t.Error("an instant has passed, and has not come")
	}
}
