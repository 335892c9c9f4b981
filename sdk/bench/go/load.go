// The load of one program of Go: as load.py.
//
//	load KIND LEASES SECONDS URL…      KIND is ringfence, redsync, redislock or etcd
//	load left LEASES CYCLES URL…       makes so many cycles of ringfence, and prints what they leave
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	ringfence "ringfence.dev/sdk/go"
)

const (
	ttl = 10 * time.Second
	// warmup is not counted: what is first done once, as connecting.
	warmup = 500 * time.Millisecond
	// endsWithin is how long what Close has ended may take until it has.
	endsWithin = 5 * time.Second
)

// A cycle acquires and releases.
type cycle func(ctx context.Context, key string) error

var libraries = map[string]func(urls []string, leases int) (cycle, error){
	"ringfence": func(urls []string, _ int) (cycle, error) {
		client, err := ringfence.New(urls)
		return func(ctx context.Context, key string) error { return once(ctx, client, key) }, err
	},
	"redsync": func(urls []string, leases int) (cycle, error) {
		client, err := connect(urls[0], leases)
		if err != nil {
			return nil, err
		}
		locks := redsync.New(goredis.NewPool(client))
		return func(ctx context.Context, key string) error {
			mutex := locks.NewMutex(key, redsync.WithExpiry(ttl))
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			_, err := mutex.UnlockContext(ctx)
			return err
		}, nil
	},
	"redislock": func(urls []string, leases int) (cycle, error) {
		client, err := connect(urls[0], leases)
		if err != nil {
			return nil, err
		}
		locks := redislock.New(client)
		return func(ctx context.Context, key string) error {
			lock, err := locks.Obtain(ctx, key, ttl, nil)
			if err != nil {
				return err
			}
			return lock.Release(ctx)
		}, nil
	},
	"etcd": func(urls []string, _ int) (cycle, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: urls})
		if err != nil {
			return nil, err
		}
		session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
		return func(ctx context.Context, key string) error {
			mutex := concurrency.NewMutex(session, key)
			if err := mutex.Lock(ctx); err != nil {
				return err
			}
			return mutex.Unlock(ctx)
		}, err
	},
}

func once(ctx context.Context, client *ringfence.Client, key string) error {
	lease, err := client.Acquire(ctx, key, ringfence.TTL(ttl))
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// connect takes as many connections as there are leases, so that none waits for one.
func connect(url string, leases int) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.PoolSize = leases
	return redis.NewClient(options), nil
}

// atOnce works for each lease, each with a key of its own.
func atOnce(leases int, work func(key string) error) {
	var all sync.WaitGroup
	for number := range leases {
		all.Go(func() {
			if err := work(fmt.Sprintf("bench/%d", number)); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
}

func measure(ctx context.Context, cycle cycle, leases int, seconds float64) {
	begins := time.Now().Add(warmup)
	ends := begins.Add(time.Duration(seconds * float64(time.Second)))
	var count atomic.Int64
	atOnce(leases, func(key string) error {
		for time.Now().Before(ends) {
			if err := cycle(ctx, key); err != nil {
				return err
			}
			if now := time.Now(); !now.Before(begins) && now.Before(ends) {
				count.Add(1)
			}
		}
		return nil
	})
	fmt.Printf("{\"per_s\": %g}\n", float64(count.Load())/seconds)
}

// left goes on until its input ends, so that its connections can be counted meanwhile.
func left(ctx context.Context, urls []string, leases int, cycles int64) error {
	before := runtime.NumGoroutine()
	client, err := ringfence.New(urls)
	if err != nil {
		return err
	}
	var begun atomic.Int64
	atOnce(leases, func(key string) error {
		for begun.Add(1) <= cycles {
			if err := once(ctx, client, key); err != nil {
				return err
			}
		}
		return nil
	})
	if err := client.Close(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(endsWithin); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Printf("{\"goroutines\": %d}\n", runtime.NumGoroutine()-before)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func run(ctx context.Context, kind, leases, amount string, urls []string) error {
	number, err := strconv.Atoi(leases)
	if err != nil {
		return err
	}
	if kind == "left" {
		cycles, err := strconv.ParseInt(amount, 10, 64)
		if err != nil {
			return err
		}
		return left(ctx, urls, number, cycles)
	}
	seconds, err := strconv.ParseFloat(amount, 64)
	if err != nil {
		return err
	}
	library := libraries[kind]
	if library == nil {
		return fmt.Errorf("there is no library %s", kind)
	}
	cycle, err := library(urls, number)
	if err != nil {
		return err
	}
	measure(ctx, cycle, number, seconds)
	return nil
}

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: load KIND LEASES SECONDS URL…, not ", strings.Join(os.Args[1:], " "))
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		log.Fatal(err)
	}
}
