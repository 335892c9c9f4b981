package kubernetes

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	token     = "ringfence.dev/token"
	protected = "ringfence.dev/protected"

	noToken  = `the annotation ringfence.dev/token is `
	noStatus = `the field status.ringfenceToken is `
	noDelete = "a delete takes the token along"
	noLabel  = "the label ringfence.dev/protected is missing"
	noStored = "the stored annotation ringfence.dev/token is no token"
)

var (
	configMaps  = resource("", "v1", "configmaps")
	deployments = resource("apps", "v1", "deployments")
	ingresses   = resource("networking.k8s.io", "v1", "ingresses")
	things      = resource("tests.ringfence.dev", "v1", "things")
	kinds       = resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
)

func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

// row is one write to an object that is there with a stored token.
type row struct {
	name string
	// A ConfigMap if it is empty.
	kind schema.GroupVersionResource
	// The stored annotation; none if it is empty.
	stored string
	// "true" if it is empty.
	label string
	// The object is to be created by the write.
	absent bool
	// The object was there before the policy.
	before bool
	write  write
	// What the refusal says; the write is accepted if it is empty. A stale token is Forbidden, all else Invalid.
	refusal string
}

type write func(context.Context, dynamic.ResourceInterface, row) error

var rows = []row{
	{name: "a create with a token", absent: true, write: create("5")},
	{name: "a create without a token", absent: true, write: create(""), refusal: noToken + `""`},
	{name: "a larger token", stored: "5", write: put("7")},
	{name: "an equal token", stored: "5", write: put("5")},
	{name: "one digit more", stored: "9", write: put("10")},
	{name: "a smaller token", stored: "7", write: put("5"), refusal: "stale token: the write has 5, the object 7"},
	{name: "no token", stored: "7", write: put(""), refusal: noToken + `""`},
	{name: "no number", stored: "7", write: put("NaN"), refusal: noToken + `"NaN"`},
	{name: "a negative number", stored: "7", write: put("-8"), refusal: noToken + `"-8"`},
	{name: "zero", stored: "7", write: put("0"), refusal: noToken + `"0"`},
	{name: "leading zeros", stored: "7", write: put("008"), refusal: noToken + `"008"`},
	{name: "a fraction", stored: "7", write: put("8.5"), refusal: noToken + `"8.5"`},
	{name: "a blank", stored: "7", write: put(" 8"), refusal: noToken + `" 8"`},
	{name: "a line break", stored: "7", write: put("8\n"), refusal: "the token is missing, or is no whole number"},
	{name: "2^53 - 1", stored: "7", write: put("9007199254740991")},
	{name: "2^53", stored: "7", write: put("9007199254740992"), refusal: noToken + `"9007199254740992"`},
	{name: "more than an int64", stored: "7", write: put("9223372036854775808"), refusal: noToken},
	{name: "a long text", stored: "7", write: put(strings.Repeat("9", 200_000)), refusal: "the token is missing, or is no"},

	{name: "a patch with a larger token", stored: "5", write: patch(annotated("7"))},
	{name: "a patch with a smaller token", stored: "7", write: patch(annotated("5")), refusal: "stale token"},
	{name: "a patch that removes the token", stored: "7", write: patch(`{"metadata": {"annotations": null}}`), refusal: noToken},
	// What the README says of such patches: the object keeps the stored token.
	{name: "a patch that leaves the token out", stored: "7", write: patch(`{"data": {"a": "1"}}`)},
	{name: "an apply with a larger token", stored: "5", write: apply("7")},
	{name: "an apply with a smaller token", stored: "7", write: apply("5"), refusal: "stale token"},
	{name: "an apply that creates without a token", absent: true, write: apply(""), refusal: noToken},

	{name: "the label removed", stored: "7", write: patch(labelled("null", "8")), refusal: noLabel},
	{name: "all labels removed", stored: "7", write: patch(`{"metadata": {"labels": null}}`), refusal: noLabel},
	{name: "a label without a value", stored: "7", write: patch(labelled(`""`, "5")), refusal: "stale token"},
	{name: "the protection ended", stored: "7", write: patch(labelled(`"false"`, "5"))},
	{name: "a delete", stored: "7", write: remove, refusal: noDelete},
	{name: "a delete of a collection", stored: "7", write: removeAll, refusal: noDelete},
	{name: "a delete after the protection", stored: "7", label: "false", write: remove},
	{name: "a write after the protection", stored: "7", label: "false", write: put("5")},
	{name: "the label removed after the protection", stored: "7", label: "false", write: patch(labelled("null", "5"))},
	{name: "the protection begins", label: "false", write: patch(labelled(`"true"`, "7"))},
	{name: "the protection begins without a token", label: "false",
		write: patch(`{"metadata": {"labels": {"ringfence.dev/protected": "true"}}}`), refusal: noToken},
	{name: "the protection begins below a token", stored: "7", label: "false",
		write: patch(labelled(`"true"`, "5")), refusal: "stale token"},
	{name: "the protection begins over no number", stored: "x", label: "false",
		write: patch(labelled(`"true"`, "5")), refusal: noStored},
	{name: "a first token", before: true, write: put("5")},
	{name: "no first token", before: true, write: put(""), refusal: noToken},
	{name: "no number to compare with", before: true, stored: "x", write: put("7"), refusal: noStored},

	{name: "a status of a built-in kind", kind: deployments, stored: "5",
		write: patch(`{"metadata": {"annotations": {"ringfence.dev/token": "7"}}, "status": {"observedGeneration": 1}}`, "status")},
	{name: "a stale status of a built-in kind", kind: deployments, stored: "7",
		write:   patch(`{"metadata": {"annotations": {"ringfence.dev/token": "5"}}, "status": {"observedGeneration": 1}}`, "status"),
		refusal: "stale token"},
	{name: "a status of a built-in kind, in a group with dots", kind: ingresses, stored: "7",
		write: patch(`{"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}`, "status")},
	// What the README says of the scale: it has neither labels nor annotations.
	{name: "a scale", kind: deployments, stored: "7", write: patch(`{"spec": {"replicas": 2}}`, "scale")},

	{name: "a custom resource", kind: things, stored: "5", write: patch(annotated("7"))},
	{name: "a stale custom resource", kind: things, stored: "7", write: patch(annotated("5")), refusal: "stale token: "},
	{name: "a status with the token", kind: things, stored: "7", write: patch(`{"status": {"ringfenceToken": 7}}`, "status")},
	{name: "a status with the token as text", kind: things, stored: "7", write: patch(`{"status": {"ringfenceToken": "7"}}`, "status")},
	{name: "a stale status", kind: things, stored: "7", write: patch(`{"status": {"ringfenceToken": 5}}`, "status"),
		refusal: "stale token, or one without a touch: the write has 5, the object 7"},
	{name: "a status without a touch", kind: things, stored: "7", write: patch(`{"status": {"ringfenceToken": 9}}`, "status"),
		refusal: "stale token, or one without a touch: the write has 9, the object 7"},
	{name: "a status without a token", kind: things, stored: "7", write: patch(`{"status": {"a": 1}}`, "status"), refusal: noStatus},
	{name: "a status with an annotation", kind: things, stored: "7",
		write: patch(`{"metadata": {"annotations": {"ringfence.dev/token": "7"}}, "status": {"a": 1}}`, "status"), refusal: noStatus},
	{name: "a status whose token is a list", kind: things, stored: "7",
		write: patch(`{"status": {"ringfenceToken": [7]}}`, "status"), refusal: "resulted in error"},
	{name: "a status before the first token", kind: things, before: true,
		write: patch(`{"status": {"ringfenceToken": 7}}`, "status"), refusal: noStored},
}

// on is the kind of the object.
func (r row) on() schema.GroupVersionResource {
	if r.kind.Resource == "" {
		return configMaps
	}
	return r.kind
}

// id is the name of the object.
func (r row) id() string {
	return strings.Trim(regexp.MustCompile("[^a-z0-9]+").ReplaceAllString(strings.ToLower(r.name), "-"), "-")
}

func create(sent string) write {
	return func(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
		_, err := objects.Create(ctx, object(configMaps, row.id(), "true", sent), metav1.CreateOptions{})
		return err
	}
}

// put writes the whole object.
func put(sent string) write {
	return func(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
		changed := object(configMaps, row.id(), row.label, sent)
		changed.Object["data"] = map[string]any{"a": "1"}
		_, err := objects.Update(ctx, changed, metav1.UpdateOptions{})
		return err
	}
}

// patch sends a merge patch.
func patch(body string, subresources ...string) write {
	return func(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
		_, err := objects.Patch(ctx, row.id(), types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		return err
	}
}

func annotated(sent string) string {
	return `{"metadata": {"annotations": {"ringfence.dev/token": "` + sent + `"}}, "data": {"a": "1"}}`
}

func labelled(label, sent string) string {
	return strings.Replace(annotated(sent), `{"annotations"`, `{"labels": {"ringfence.dev/protected": `+label+`}, "annotations"`, 1)
}

// apply sends a server-side apply, of a manager that takes what it names.
func apply(sent string) write {
	return func(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
		applied := object(configMaps, row.id(), "true", sent)
		_, err := objects.Apply(ctx, row.id(), applied, metav1.ApplyOptions{FieldManager: "leader", Force: true})
		return err
	}
}

func remove(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
	return objects.Delete(ctx, row.id(), metav1.DeleteOptions{})
}

func removeAll(ctx context.Context, objects dynamic.ResourceInterface, row row) error {
	those := metav1.ListOptions{FieldSelector: "metadata.name=" + row.id()}
	return objects.DeleteCollection(ctx, metav1.DeleteOptions{}, those)
}

// object is an object with a label, "true" by default, and with an annotation unless it is empty.
func object(kind schema.GroupVersionResource, name, label, annotation string) *unstructured.Unstructured {
	if label == "" {
		label = "true"
	}
	text := map[schema.GroupVersionResource]string{
		configMaps: `{"kind": "ConfigMap"}`,
		things:     `{"kind": "Thing"}`,
		deployments: `{"kind": "Deployment", "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
			"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}}`,
		ingresses: `{"kind": "Ingress", "spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}`,
	}[kind]
	made := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &made.Object); err != nil {
		panic(err)
	}
	made.SetAPIVersion(kind.GroupVersion().String())
	made.SetName(name)
	made.SetLabels(map[string]string{protected: label})
	if annotation != "" {
		made.SetAnnotations(map[string]string{token: annotation})
	}
	return made
}

// seed creates the object of a row.
func (in space) seed(ctx context.Context, t *testing.T, row row) {
	t.Helper()
	if row.absent {
		return
	}
	made := object(row.on(), row.id(), row.label, row.stored)
	if _, err := in.Resource(row.on()).Namespace(in.name).Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatalf("%s: %v", row.name, err)
	}
}

// createKind defines a custom resource whose status is a subresource, and waits until it is served.
func createKind(ctx context.Context, t *testing.T, client dynamic.Interface) {
	t.Helper()
	text := `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "things.tests.ringfence.dev"},
		"spec": {"group": "tests.ringfence.dev", "scope": "Namespaced", "names": {"kind": "Thing", "plural": "things"}, "versions": [{
			"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`
	var made map[string]any
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		t.Fatal(err)
	}
	space{client, "default"}.create(ctx, t, kinds, made)
	until(ctx, t, "the custom resource is served", func() error {
		_, err := client.Resource(things).Namespace("default").List(ctx, metav1.ListOptions{})
		return err
	})
}
