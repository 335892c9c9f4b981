package examples

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"ringfence.dev/sdk/go/ringfencetest"
)

const soon = 30 * time.Second

// held is a controller whose write to the API server, a fake, is under way until it is let go.
type held struct {
	Controller
	token   chan string
	letGo   chan struct{}
	results chan error
}

func holding() *held {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plan"}, Data: map[string]string{"wanted": "8 shards"},
	}
	h := &held{Controller{nil, "default", "plan"}, make(chan string, 1), make(chan struct{}), make(chan error, 1)}
	h.Kube = slowKube{fake.NewClientset(object), h}
	return h
}

// A slowKube holds updates of a ConfigMap. A reactor of the fake would hold all calls.
type slowKube struct {
	kubernetes.Interface
	h *held
}

type slowCore struct {
	corev1client.CoreV1Interface
	h *held
}

type slowMaps struct {
	corev1client.ConfigMapInterface
	h *held
}

func (k slowKube) CoreV1() corev1client.CoreV1Interface { return slowCore{k.Interface.CoreV1(), k.h} }

func (c slowCore) ConfigMaps(namespace string) corev1client.ConfigMapInterface {
	return slowMaps{c.CoreV1Interface.ConfigMaps(namespace), c.h}
}

func (m slowMaps) Update(ctx context.Context, object *corev1.ConfigMap, options metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	m.h.token <- object.Annotations[annotation]
	<-m.h.letGo
	return m.ConfigMapInterface.Update(ctx, object, options)
}

func (h *held) identity(t *testing.T) string {
	lease, err := h.Kube.CoordinationV1().Leases("default").Get(t.Context(), "plan", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		t.Fatal("there is no lease: ", err)
	}
	return *lease.Spec.HolderIdentity
}

func got[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case one := <-from:
		return one
	case <-time.After(soon):
		t.Fatal("not within a bound")
		panic("unreachable")
	}
}

func (h *held) done(t *testing.T) string {
	object, err := h.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "plan", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object.Data["done"]
}

func TestClientGoReleasesBeforeTheWorkHasEndedAndShowsNoToken(t *testing.T) {
	h := holding()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { h.results <- h.LeadByClientGo(ctx, "pod-1") }()
	if token := got(t, h.token); token != "" || h.identity(t) != "pod-1" {
		t.Error("it shows ", token, ", and led is ", h.identity(t))
	}
	cancel()
	if err := got(t, h.results); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if h.identity(t) != "" {
		t.Error("it was not released while the write was under way: ", h.identity(t))
	}
	close(h.letGo)
	for end := time.Now().Add(soon); h.done(t) != "8 shards"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the late write was not stored")
		}
	}
}

func TestLeadReleasesOnceTheWorkHasEndedAndShowsItsToken(t *testing.T) {
	h, cluster := holding(), ringfencetest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { h.results <- h.Lead(ctx, cluster.Client()) }()
	token, holders := got(t, h.token), cluster.Holders("controllers/plan")
	if len(holders) != 1 || token != strconv.FormatUint(holders[0], 10) {
		t.Error("it shows ", token, ", and has ", holders)
	}
	cancel()
	select {
	case err := <-h.results:
		t.Error("it ended before its work: ", err)
	case <-time.After(100 * time.Millisecond):
	}
	if len(cluster.Holders("controllers/plan")) != 1 {
		t.Error("it released before its work had ended")
	}
	close(h.letGo)
	if err := got(t, h.results); !errors.Is(err, context.Canceled) || len(cluster.Holders("controllers/plan")) != 0 {
		t.Error(err, cluster.Holders("controllers/plan"))
	}
}

func TestALeaderThatLostItsLeaseCampaignsAgain(t *testing.T) {
	h, cluster := holding(), ringfencetest.Start(t)
	close(h.letGo)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { h.results <- h.Lead(ctx, cluster.Client()) }()
	first := got(t, h.token)
	cluster.Revoke("controllers/plan")
	cluster.Advance(5 * time.Second) // a third of the ttl: it is renewed, and told
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		holders := cluster.Holders("controllers/plan")
		if len(holders) == 1 && strconv.FormatUint(holders[0], 10) != first {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not lead again: ", holders)
		}
	}
	cancel()
	if err := got(t, h.results); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
