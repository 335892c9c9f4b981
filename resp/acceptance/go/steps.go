// Plays the scenarios of Go's lock libraries, and tells the runner how each step went.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A step gets a new key, and fails by an error.
type step struct {
	name string
	play func(ctx context.Context, key string) error
}

var (
	address = os.Getenv("LOCKS_HOST") + ":" + os.Getenv("LOCKS_PORT")
	// The address of the node's HTTP API; empty if the server is a Redis.
	httpAddress = os.Getenv("LOCKS_HTTP")
	client      = redis.NewClient(&redis.Options{Addr: address})
)

func main() {
	scenarios := map[string]struct {
		module string
		steps  []step
	}{
		"redsync":   {"github.com/go-redsync/redsync/v4", redsyncSteps()},
		"redislock": {"github.com/bsm/redislock", redislockSteps()},
	}
	if os.Args[1] == "cycles" {
		cycles()
		return
	}
	scenario := scenarios[os.Args[1]]
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == scenario.module {
			fmt.Println("version", module.Version)
		}
	}
	for _, step := range scenario.steps {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := step.play(ctx, step.name+"-"+rand.Text()); err != nil {
			fmt.Printf("failed %s: %s\n", step.name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", step.name)
		}
		cancel()
	}
}

// onRingfence returns the steps if the server is a node of Ringfence.
func onRingfence(steps ...step) []step {
	if httpAddress == "" {
		return nil
	}
	return steps
}

// all returns the first error of the conditions that do not hold.
func all(conditions ...bool) error {
	for number, holds := range conditions {
		if !holds {
			_, file, line, _ := runtime.Caller(1)
			return fmt.Errorf("%s:%d: condition %d does not hold", file[strings.LastIndex(file, "/")+1:], line, number+1)
		}
	}
	return nil
}

// token returns the token of the lock with this value.
func token(ctx context.Context, key, value string) (int64, error) {
	return client.Do(ctx, "RINGFENCE.TOKEN", key, value).Int64()
}

// revoke ends the lease as an operator does.
func revoke(ctx context.Context, key, value string) error {
	shown, err := token(ctx, key, value)
	if err != nil {
		return err
	}
	body, _ := json.Marshal(map[string]any{"key": key, "token": shown})
	response, err := http.Post(httpAddress+"/v1/revoke", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return all(response.StatusCode == http.StatusNoContent)
}

// pttl returns what is left of the key; below 0, it is not there.
func pttl(ctx context.Context, key string) time.Duration {
	left, err := client.PTTL(ctx, key).Result()
	if err != nil {
		return -1
	}
	return left
}
