module ringfence.dev/sdk/go/cron

go 1.24.0

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/google/uuid v1.6.0
	github.com/jonboulle/clockwork v0.5.0
	go.uber.org/goleak v1.3.0
	ringfence.dev/sdk/go v0.0.0
)

require github.com/robfig/cron/v3 v3.0.1 // indirect

replace ringfence.dev/sdk/go => ../
