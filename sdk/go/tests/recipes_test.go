package tests

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// What docs/recipes.md shows is between the rules.

// ---

// job returns a LostError if the lease was lost: then another machine may have run the job at the same time.
func job(ctx context.Context, client *ringfence.Client, store func(context.Context, string, http.Header) error) error {
	const key = "reports/nightly"
	return client.Do(ctx, key, func(ctx context.Context, lease *ringfence.Lease) error {
		for _, part := range []string{"sums", "charts"} {
			header := http.Header{}
			if err := lease.SetHeaders(header, key); err != nil {
				return err
			}
			if err := store(ctx, part, header); err != nil {
				return err
			}
		}
		return nil
	}, ringfence.Wait(10*time.Second), ringfence.HoldAtLeast(50*time.Second))
}

// ---

func TestTheDocumentShowsWhatIsTested(t *testing.T) {
	own, err := os.ReadFile("recipes_test.go")
	document, err2 := os.ReadFile("../../../docs/recipes.md")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	tested := strings.TrimSpace(strings.Split(string(own), "// ---\n")[1])
	if !strings.Contains(string(document), "```go\n"+tested+"\n```\n") {
		t.Error("docs/recipes.md shows something else")
	}
}

func TestAQuickJobRunsOnOneMachineAndOneThatLosesTheLeaseEndsWithAnError(t *testing.T) {
	cluster := ringfencetest.Start(t)
	var stored []string
	err := job(t.Context(), cluster.Client(), func(_ context.Context, part string, header http.Header) error {
		stored = append(stored, part, header.Get("Ringfence-Key"))
		return nil
	})
	if err != nil || strings.Join(stored, " ") != "sums reports%2Fnightly charts reports%2Fnightly" {
		t.Error(stored, err)
	}
	if len(cluster.Holders("reports/nightly")) != 1 {
		t.Error("it could run again at once")
	}
	cluster.Revoke("reports/nightly")
	err = job(t.Context(), cluster.Client(), func(ctx context.Context, _ string, _ http.Header) error {
		cluster.Revoke("reports/nightly")
		cluster.Advance(5 * time.Second)
		<-ctx.Done()
		return nil
	})
	if lost := (*ringfence.LostError)(nil); !errors.As(err, &lost) || lost.Reason != ringfence.Revoked {
		t.Error(err)
	}
}

func TestAnotherClientGoesOnWithALeaseThatWasLeft(t *testing.T) {
	cluster := ringfencetest.Start(t)
	first := cluster.Client()
	lease, err := first.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	leaseID, err := lease.Detach()
	if err != nil || first.Close(t.Context()) != nil || isFree(cluster, "a")() {
		t.Fatal("a lease that was left was released: ", err)
	}
	adopted, err := cluster.Client().Adopt(t.Context(), leaseID)
	if err != nil || adopted.Token() != lease.Token() {
		t.Fatal(err)
	}
	if err := adopted.Release(t.Context()); err != nil || !isFree(cluster, "a")() {
		t.Error(err)
	}
}
