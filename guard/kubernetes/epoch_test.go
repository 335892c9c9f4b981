// Package kubernetes tests the guard for Kubernetes objects, epoch.yaml, with a real kube-apiserver and etcd.
package kubernetes

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

var (
	policies   = resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
	bindings   = resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings")
	namespaces = resource("", "v1", "namespaces")
)

// mutants are mistakes in the policy, each with a row that finds it.
var mutants = []struct{ old, new, row string }{
	{"int(variables.sent) >= int(variables.stored)", "int(variables.sent) > int(variables.stored)", "an equal token"},
	{"int(variables.sent) >= int(variables.stored)", "variables.sent >= variables.stored", "one digit more"},
	{"variables.sent == variables.stored", "int(variables.sent) >= int(variables.stored)", "a status without a touch"},
	{"failurePolicy: Fail", "failurePolicy: Ignore", "a status whose token is a list"},
	{`expression: "variables.label != '(deleted)'"`, `expression: "true"`, "a delete"},
	{`expression: "variables.label != '(removed)'"`, `expression: "true"`, "the label removed"},
	{`expression: "variables.ends || variables.isToken"`, `expression: "true"`, "no token"},
	{"|| variables.wasToken || variables.stored == '' && !variables.inStatus", "|| true", "no number to compare with"},
	{"['false', '(deleted)', '(removed)']", "['(deleted)', '(removed)']", "the protection ended"},
	{`operator: NotIn, values: ["false"]`, "operator: Exists", "a delete after the protection"},
	{"(variables.sent) <= 9007199254740991", "(variables.sent) > 0", "2^53"},
	{"[1-9][0-9]{0,15}$') && int(variables.sent)", "[0-9]{1,16}$') && int(variables.sent)", "leading zeros"},
	{"{0,15}$') && int(variables.sent)", "*$') && int(variables.sent)", "more than an int64"},
	{"$') && int(variables.sent)", "') && int(variables.sent)", "a fraction"},
	{"has(request.subResource) && request.subResource == 'status'", "false", "a status without a token"},
	{"&& !request.resource.group.endsWith('.k8s.io')", "", "a status of a built-in kind, in a group with dots"},
	{`resources: ["*/*"]`, `resources: ["*"]`, "a stale status of a built-in kind"},
	{"operations: [CREATE, UPDATE, DELETE]", "operations: [UPDATE, DELETE]", "a create without a token"},
}

// TestRows plays each row of the table with the policy, and with each mutant, which at least the row that it names must find.
func TestRows(t *testing.T) {
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-10*time.Second))
		defer cancel()
	}
	client := startServer(ctx, t)
	createKind(ctx, t, client)
	policy, err := os.ReadFile("epoch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	right := install(ctx, t, client, "right", string(policy))
	if wrong := play(ctx, t, right); len(wrong) > 0 {
		t.Fatalf("these rows went wrong:\n%s", strings.Join(wrong, "\n"))
	}
	for number, mutant := range mutants {
		if count := strings.Count(string(policy), mutant.old); count != 1 {
			t.Errorf("the policy has the text %q %d times", mutant.old, count)
			continue
		}
		text := strings.Replace(string(policy), mutant.old, mutant.new, 1)
		wrong := play(ctx, t, install(ctx, t, client, fmt.Sprintf("mutant-%d", number), text))
		found := func(line string) bool { return strings.HasPrefix(line, mutant.row+":") }
		if !slices.ContainsFunc(wrong, found) {
			t.Errorf("%q instead of %q: the row %q went as it should; others:\n%s",
				mutant.new, mutant.old, mutant.row, strings.Join(wrong, "\n"))
		}
	}
	// The file as it is.
	everywhere := space{client, "default"}
	asPolicy, asBinding := parts(t, string(policy))
	everywhere.create(ctx, t, policies, asPolicy)
	everywhere.create(ctx, t, bindings, asBinding)
	until(ctx, t, "the file is in force", func() error { return everywhere.probe(ctx) })
}

// space is a namespace with a policy of its own.
type space struct {
	dynamic.Interface
	name string
}

// install applies the policy and its binding under another name, for a new namespace alone, and waits until it is in force.
func install(ctx context.Context, t *testing.T, client dynamic.Interface, name, text string) space {
	t.Helper()
	in := space{client, name}
	in.create(ctx, t, namespaces, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	in.seed(ctx, t, row{name: "probe", stored: "5"})
	for _, row := range rows {
		if row.before {
			in.seed(ctx, t, row)
		}
	}
	policy, binding := parts(t, text)
	here := map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": name}}
	spec := binding["spec"].(map[string]any)
	spec["policyName"], spec["matchResources"] = name, map[string]any{"namespaceSelector": here}
	policy["metadata"], binding["metadata"] = map[string]any{"name": name}, map[string]any{"name": name}
	in.create(ctx, t, policies, policy)
	in.create(ctx, t, bindings, binding)
	until(ctx, t, name+" is in force", func() error { return in.probe(ctx) })
	return in
}

// parts are the policy and the binding of the file.
func parts(t *testing.T, text string) (policy, binding map[string]any) {
	t.Helper()
	first, second, _ := strings.Cut(text, "\n---\n")
	for text, part := range map[string]*map[string]any{first: &policy, second: &binding} {
		if err := yaml.UnmarshalStrict([]byte(text), part); err != nil {
			t.Fatal(err)
		}
	}
	return policy, binding
}

func (in space) create(ctx context.Context, t *testing.T, kind schema.GroupVersionResource, object map[string]any) {
	t.Helper()
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if _, err := in.Resource(kind).Create(ctx, &unstructured.Unstructured{Object: object}, strict); err != nil {
		t.Fatalf("%s: %v", in.name, err)
	}
}

// probe fails until a policy refuses one of two writes. A mutant changes one rule, so it refuses the other.
func (in space) probe(ctx context.Context) error {
	objects, dry := in.Resource(configMaps).Namespace(in.name), []string{metav1.DryRunAll}
	bad := object(configMaps, "bad", "true", "-1")
	_, create := objects.Create(ctx, bad, metav1.CreateOptions{DryRun: dry})
	unlabel := []byte(`{"metadata": {"labels": null}}`)
	_, patch := objects.Patch(ctx, "probe", types.MergePatchType, unlabel, metav1.PatchOptions{DryRun: dry})
	for _, err := range []error{create, patch} {
		if err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return nil
		}
	}
	return fmt.Errorf("a create: %v; a patch: %v", create, patch)
}

// play returns what went wrong, a line for each row that did.
func play(ctx context.Context, t *testing.T, in space) []string {
	t.Helper()
	var wrong []string
	for _, row := range rows {
		if !row.before {
			in.seed(ctx, t, row)
		}
		objects := in.Resource(row.on()).Namespace(in.name)
		read := func() string {
			object, err := objects.Get(ctx, row.id(), metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			return object.GetResourceVersion()
		}
		earlier := read()
		err := row.write(ctx, objects, row)
		switch later := read(); {
		case row.refusal == "" && err != nil:
			wrong = append(wrong, fmt.Sprintf("%s: %v", row.name, err))
		case row.refusal == "" && later == earlier:
			wrong = append(wrong, row.name+": nothing was written")
		case row.refusal != "" && (err == nil || !strings.Contains(err.Error(), row.refusal)):
			wrong = append(wrong, fmt.Sprintf("%s: %v, and not %q", row.name, err, row.refusal))
		case row.refusal != "" && later != earlier:
			wrong = append(wrong, row.name+": was refused, and written")
		case err != nil && strings.HasPrefix(row.refusal, "stale token") != errors.IsForbidden(err):
			wrong = append(wrong, fmt.Sprintf("%s: the status is wrong: %v", row.name, err))
		}
	}
	return wrong
}
