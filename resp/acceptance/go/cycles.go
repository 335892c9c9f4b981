package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// cycles prints how often goroutines acquire and release a lock each with go-redsync.
func cycles() {
	clients, _ := strconv.Atoi(os.Getenv("CYCLES_CLIENTS"))
	seconds, _ := strconv.ParseFloat(os.Getenv("CYCLES_SECONDS"), 64)
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: clients})
	locks := redsync.New(goredis.NewPool(client))
	var done atomic.Int64
	var all sync.WaitGroup
	for number := range clients {
		all.Go(func() {
			cycle := func() {
				mutex := locks.NewMutex(fmt.Sprintf("cycles/%d", number), redsync.WithTries(1))
				if err := mutex.Lock(); err != nil {
					panic(err)
				}
				if _, err := mutex.Unlock(); err != nil {
					panic(err)
				}
			}
			cycle()
			for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); {
				cycle()
				done.Add(1)
			}
		})
	}
	all.Wait()
	fmt.Println(done.Load())
}
