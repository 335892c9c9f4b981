module ringfence.dev/sdk/go

go 1.24
