// Package examples has the loop of a controller under two elections: client-go's, and Lead of Ringfence.
//
// The lease of client-go is an object of the API server, which sees to it that one of two updates wins, and to no more: a candidate takes it over
// once its own clock says that nobody has renewed it for the LeaseDuration. Whether its holder has stopped by then, the holder's clock decides, and
// client-go says that it "does not guarantee that only one client is acting as a leader". It has no token: nobody checks leaseTransitions, so the API
// server stores what a leader still writes that was paused, or that ReleaseOnCancel released before its work had ended. Lead cancels the context of
// the work before the cluster can grant the key to another, unless the whole process is paused, and releases the key once the work has ended. For one
// that was paused, each leader has a token that is larger than all before: once `ringfence guard kubernetes` is applied, the API server refuses what it
// still writes to an object that is labelled ringfence.dev/protected, and that the next leader has touched.
package examples

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	ringfence "ringfence.dev/sdk/go"
)

const (
	period = time.Second
	// annotation is where the policy of `ringfence guard kubernetes` looks for the token.
	annotation = "ringfence.dev/token"
)

// A Controller makes a ConfigMap as it should be: its data "done" what "wanted" is.
type Controller struct {
	Kube            kubernetes.Interface
	Namespace, Name string
}

var errLost = errors.New("the lease of client-go is lost")

// LeadByClientGo works as client-go's leader with this identity, until the context ends, a write fails, or the lease is lost. End the process then:
// the work may still run.
func (c *Controller) LeadByClientGo(ctx context.Context, identity string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
			Client:     c.Kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				// What fails by the loss says less than that.
				if err := c.loop(ctx, ""); ctx.Err() == nil {
					end(err)
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errLost
}

// Lead works as Ringfence's leader, until the context ends or a write fails. After a loss, it campaigns again.
func (c *Controller) Lead(ctx context.Context, client *ringfence.Client) error {
	return client.Lead(ctx, "controllers/"+c.Name, func(ctx context.Context, lease *ringfence.Lease) error {
		token := strconv.FormatUint(lease.Token(), 10)
		// A touch: from now on, no write with a smaller token changes what is read.
		touch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, annotation, token)
		maps := c.Kube.CoreV1().ConfigMaps(c.Namespace)
		if _, err := maps.Patch(ctx, c.Name, types.MergePatchType, []byte(touch), metav1.PatchOptions{}); err != nil {
			return err
		}
		return c.loop(ctx, token)
	})
}

func (c *Controller) loop(ctx context.Context, token string) error {
	for {
		if err := c.reconcile(ctx, token); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(period):
		}
	}
}

// reconcile shows the token with each write, if there is one: the token that it read may be that of the next leader.
func (c *Controller) reconcile(ctx context.Context, token string) error {
	maps := c.Kube.CoreV1().ConfigMaps(c.Namespace)
	object, err := maps.Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil || object.Data["done"] == object.Data["wanted"] {
		return err
	}
	if token != "" {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, annotation, token)
	}
	object.Data["done"] = object.Data["wanted"]
	_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	return err
}
