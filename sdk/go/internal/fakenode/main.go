// The fake of package ringfencetest as a program, with as much of the command line of `ringfence serve` as the conformance suite needs.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"ringfence.dev/sdk/go/ringfencetest"
)

func main() {
	options := make(map[string]string)
	for _, argument := range os.Args {
		name, value, _ := strings.Cut(argument, "=")
		options[name] = value
	}
	parent := fmt.Sprint(os.Getppid())
	go func() {
		for fmt.Sprint(os.Getppid()) == parent {
			time.Sleep(200 * time.Millisecond)
		}
		os.Exit(0)
	}()
	fmt.Fprintln(os.Stderr, http.ListenAndServe(options["--http"], ringfencetest.New()))
	os.Exit(1)
}
