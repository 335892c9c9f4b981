package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/go-co-op/gocron/v2"

	_ "ringfence.dev/sdk/go/cron"
	"ringfence.dev/sdk/go/ringfencetest"
)

var (
	block    = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	node     = regexp.MustCompile(`http://localhost:740\d`)
	expected = regexp.MustCompile(`(?m)^\s*//> (.*)$`)
)

func TestTheExamplesOfTheReadmePrintWhatTheySay(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range block.FindAllStringSubmatch(string(text), -1) {
		example := found[1]
		wanted := ""
		for _, line := range expected.FindAllStringSubmatch(example, -1) {
			wanted += line[1] + "\n"
		}
		cluster := ringfencetest.Start(t)
		placed := node.ReplaceAllString(example, cluster.URL())
		if strings.Contains(placed, "postgresql://") {
			placed = strings.Replace(placed, "postgresql://localhost/postgres", postgres(t), 1)
		}
		if strings.Contains(placed, "localhost") {
			t.Fatal("an example wants a service that is not here: ", placed)
		}
		play(t, placed, wanted)
	}
}

// play runs an example in a package of this module.
func play(t *testing.T, example, wanted string) {
	dir, err := os.MkdirTemp(".", "example-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name, command := "main.go", []string{"run", "./" + dir}
	if strings.Contains(example, `"testing"`) {
		name, command, wanted = "main_test.go", []string{"test", "./" + dir}, "ok"
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command("go", command...).CombinedOutput()
	if err != nil || (string(said) != wanted && !strings.HasPrefix(string(said), "ok")) {
		t.Errorf("%s\nprints %q, not %q: %v", example, said, wanted, err)
	}
}
