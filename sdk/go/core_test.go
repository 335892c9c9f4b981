package ringfence

import (
	"errors"
	"testing"
)

func TestReleasesThatFailLeaveNothingBehind(t *testing.T) {
	client, err := New([]string{"http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("an outage")
	for range 100 {
		client.core.background(newID(), []string{"a"}, func() error { return failed })
	}
	client.core.goroutines.Wait()
	if kept := len(client.core.failed); kept > 0 {
		t.Errorf("%d are kept", kept)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
