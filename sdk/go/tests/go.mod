module ringfence.dev/sdk/go/tests

go 1.24.0

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/jackc/pgx/v5 v5.8.0
	go.uber.org/goleak v1.3.0
	ringfence.dev/sdk/go v0.0.0
	ringfence.dev/sdk/go/cron v0.0.0
	ringfence.dev/sdk/go/pgxguard v0.0.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	golang.org/x/sync v0.17.0 // indirect
	golang.org/x/text v0.29.0 // indirect
)

replace (
	ringfence.dev/sdk/go => ../
	ringfence.dev/sdk/go/cron => ../cron
	ringfence.dev/sdk/go/pgxguard => ../pgxguard
)
