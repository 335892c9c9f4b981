// The adapter speaks the protocol of the conformance suite: one JSON object per line, requests on stdin, answers and events on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	ringfence "ringfence.dev/sdk/go"
)

// A goroutine that renews goes on while another is blocked. A program ends when its main function returns, whatever is pending, and nothing
// interrupts a goroutine, nor forks it.
var abilities = []string{
	"cancel", "using", "shared", "clock", "tls", "credential", "adopt", "headers", "hold_at_least", "max_hold", "deadline", "leave", "drop",
	"leaked", "on_lost", "on_lost_block", "lead", "close", "resources",
}

// A block is one that was entered, and whose body is ended by another.
type block struct {
	end   chan struct{}
	ended chan error
}

type object map[string]any

var errBody = errors.New("the body failed")

var (
	mu      sync.Mutex
	clients = map[string]*ringfence.Client{}
	leases  = map[string]*ringfence.Lease{}
	pending = map[int]context.CancelFunc{}
	blocks  = map[string]block{}
	// names are those of leases, by their tokens, and onLost what the callback of each does.
	names  = map[uint64]string{}
	onLost = map[string]string{}
	// early are the losses of leases that have no name yet.
	early  = map[uint64]ringfence.LossReason{}
	jumped ringfence.Moment
)

func main() {
	// From now on the runtime has the descriptors by which it waits for connections: they are no client's.
	if listener, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = listener.Close()
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var one call
		if err := json.Unmarshal(line, &one); err != nil {
			panic(err)
		}
		if one.Op == "exit" {
			return
		}
		if one.Op == "clock" {
			// What is asked next is asked after the jump.
			if err := advance(one); err != nil {
				panic(err)
			}
			write(object{"id": one.ID, "ok": object{}})
			continue
		}
		begin(one)
	}
}

func begin(one call) {
	ctx, cancel := context.WithCancel(context.Background())
	if one.Deadline != nil {
		ctx, cancel = context.WithTimeout(ctx, ms(one.Deadline))
	}
	mu.Lock()
	pending[one.ID] = cancel
	mu.Unlock()
	go func() {
		defer cancel()
		ok, err := run(ctx, one)
		if err != nil {
			write(object{"id": one.ID, "error": problem(err)})
		} else {
			write(object{"id": one.ID, "ok": ok})
		}
		mu.Lock()
		defer mu.Unlock()
		delete(pending, one.ID)
	}()
}

func run(ctx context.Context, one call) (any, error) {
	mu.Lock()
	client, lease := clients[one.Client], leases[one.Lease]
	mu.Unlock()
	switch one.Op {
	case "hello":
		return object{"sdk": "go", "abilities": abilities}, nil
	case "open":
		return object{}, open(one)
	case "acquire", "try":
		return kept(one, func() (*ringfence.Lease, error) { return client.AcquireAll(ctx, claims(one), options(one)...) })
	case "adopt":
		return kept(one, func() (*ringfence.Lease, error) { return client.Adopt(ctx, one.LeaseID) })
	case "using":
		return object{}, client.DoAll(ctx, claims(one), body(one), options(one)...)
	case "enter":
		return enter(client, one)
	case "leave":
		mu.Lock()
		entered := blocks[one.Lease]
		mu.Unlock()
		close(entered.end)
		return object{}, <-entered.ended
	case "lead":
		return lead(ctx, client, one)
	case "state", "renew", "release", "headers", "fence":
		return look(ctx, lease, one)
	default:
		return act(client, one)
	}
}

func act(client *ringfence.Client, one call) (any, error) {
	switch one.Op {
	case "cancel":
		mu.Lock()
		defer mu.Unlock()
		if cancel := pending[one.Target]; cancel != nil {
			cancel()
		}
		return object{}, nil
	case "many":
		for _, text := range one.Requests {
			var of call
			if err := json.Unmarshal(text, &of); err != nil {
				return nil, err
			}
			begin(of)
		}
		return object{}, nil
	case "close":
		return closed(client, one)
	case "drop":
		return object{}, drop(one)
	case "resources":
		files, err := os.ReadDir("/proc/self/fd")
		return object{"goroutines": runtime.NumGoroutine(), "descriptors": len(files)}, err
	default:
		return nil, fmt.Errorf("there is no operation %s", one.Op)
	}
}

func look(ctx context.Context, lease *ringfence.Lease, one call) (any, error) {
	if lease == nil {
		return nil, fmt.Errorf("there is no lease %q", one.Lease)
	}
	switch one.Op {
	case "renew":
		return object{}, lease.Renew(ctx, time.Duration(one.TTL)*time.Millisecond)
	case "release":
		return object{}, lease.Release(ctx)
	case "state":
		found := object{"state": lease.State(), "remaining_ms": lease.Remaining().Milliseconds(), "reason": nil}
		if lost := (*ringfence.LostError)(nil); errors.As(lease.Err(), &lost) {
			found["reason"] = lost.Reason
		}
		return found, nil
	case "headers":
		header := http.Header{}
		if err := lease.SetHeaders(header, one.Key); err != nil {
			return nil, err
		}
		flat := object{}
		for name := range header {
			flat[name] = header.Get(name)
		}
		return object{"headers": flat}, nil
	default:
		fence, err := lease.Fence(one.Key)
		return object{"fence": fence}, err
	}
}

func open(one call) error {
	options := []ringfence.ClientOption{
		ringfence.WithHooks(ringfence.Hooks{
			Lost:     func(lease ringfence.LeaseView, reason ringfence.LossReason) { lost(lease.Token, reason) },
			Released: func(lease ringfence.LeaseView) { lost(lease.Token, ringfence.Released) },
		}),
		ringfence.WithLogger(slog.New(logged{slog.NewTextHandler(os.Stderr, nil)})),
		ringfence.WithCredential(one.Credential), ringfence.WithCA(one.CA), ringfence.WithCertificate(one.Cert, one.Key),
	}
	if one.Clock == "played" {
		options = append(options, ringfence.WithClock(played))
	}
	client, err := ringfence.New(one.URLs, options...)
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	clients[one.Client] = client
	return nil
}

// logged tells of handles that were dropped, and logs the rest.
type logged struct {
	slog.Handler
}

func (l logged) Handle(ctx context.Context, record slog.Record) error {
	isLeak := false
	record.Attrs(func(attr slog.Attr) bool {
		isLeak = attr.Value.String() == ringfence.WarnDropped
		return true
	})
	if isLeak {
		write(object{"event": "leaked", "message": record.Message})
		return nil
	}
	return l.Handler.Handle(ctx, record)
}

func played() ringfence.Moment {
	mu.Lock()
	defer mu.Unlock()
	now := ringfence.SystemClock()
	return ringfence.Moment{Boot: now.Boot + jumped.Boot, Raw: now.Raw + jumped.Raw}
}

func lost(token uint64, reason ringfence.LossReason) {
	mu.Lock()
	name, isNamed := names[token]
	if !isNamed {
		early[token] = reason
		mu.Unlock()
		return
	}
	delete(names, token)
	does := onLost[name]
	mu.Unlock()
	write(object{"event": "lost", "lease": name, "reason": reason})
	switch does {
	case "raise":
		panic(errBody)
	case "block":
		select {}
	}
}

func kept(one call, acquire func() (*ringfence.Lease, error)) (any, error) {
	lease, err := acquire()
	if err != nil {
		return nil, err
	}
	return keep(one, lease), nil
}

func keep(one call, lease *ringfence.Lease) object {
	token := lease.Token()
	mu.Lock()
	leases[one.Lease] = lease
	names[token] = one.Lease
	onLost[one.Lease] = one.OnLost
	reason, isLost := early[token]
	delete(early, token)
	mu.Unlock()
	if isLost {
		lost(token, reason)
	}
	fences := object{}
	for _, key := range lease.Keys() {
		fences[key], _ = lease.Fence(key)
	}
	return object{"lease_id": lease.ID(), "token": token, "fences": fences, "state": lease.State()}
}

func body(one call) ringfence.Work {
	return func(ctx context.Context, lease *ringfence.Lease) error {
		keep(one, lease)
		switch one.Body {
		case "until_lost", "swallow":
			<-ctx.Done()
		default:
			time.Sleep(time.Duration(one.Millis) * time.Millisecond)
		}
		switch one.Body {
		case "raise":
			return errBody
		case "until_lost":
			return context.Cause(ctx)
		default:
			return nil
		}
	}
}

func enter(client *ringfence.Client, one call) (any, error) {
	entered, own := make(chan object, 1), block{make(chan struct{}), make(chan error, 1)}
	go func() {
		own.ended <- client.DoAll(context.Background(), claims(one), func(_ context.Context, lease *ringfence.Lease) error {
			mu.Lock()
			blocks[one.Lease] = own
			mu.Unlock()
			entered <- keep(one, lease)
			<-own.end
			return nil
		}, options(one)...)
	}()
	select {
	case ok := <-entered:
		return ok, nil
	case err := <-own.ended:
		return nil, err
	}
}

func lead(ctx context.Context, client *ringfence.Client, one call) (any, error) {
	terms := 0
	reported := make(chan error, 100)
	err := client.Lead(ctx, one.Key, func(ctx context.Context, lease *ringfence.Lease) error {
		terms++
		write(object{"event": "leads", "lease": one.Lease, "token": lease.Token()})
		switch {
		case terms > 1 || one.Body == "return":
			return nil
		case one.Body == "raise_stale":
			return &ringfence.StaleError{Detail: "the guard refused the token"}
		case one.Body == "raise_after_loss":
			<-ctx.Done()
		}
		return errBody
	}, ringfence.TTL(time.Duration(one.TTL)*time.Millisecond), ringfence.OnError(func(err error) { reported <- err }))
	return object{"terms": terms, "reported": len(reported)}, err
}

func closed(client *ringfence.Client, one call) (any, error) {
	ctx := context.Background()
	if one.Within != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ms(one.Within))
		defer cancel()
	}
	err := client.Close(ctx)
	if left := (*ringfence.LeftError)(nil); errors.As(err, &left) {
		return object{"left": len(left.Leases)}, nil
	}
	return object{"left": 0}, err
}

// drop forgets a handle, and has it collected.
func drop(one call) error {
	mu.Lock()
	delete(leases, one.Lease)
	mu.Unlock()
	for range 3 {
		runtime.GC()
	}
	return nil
}

func advance(one call) error {
	var both int64
	var each struct{ Boot, Raw int64 }
	if err := json.Unmarshal(one.Advance, &both); err == nil {
		each.Boot, each.Raw = both, both
	} else if err := json.Unmarshal(one.Advance, &each); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	jumped.Boot += time.Duration(each.Boot) * time.Millisecond
	jumped.Raw += time.Duration(each.Raw) * time.Millisecond
	return nil
}

var output sync.Mutex

func write(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}
