module ringfence/tests

go 1.24

require (
	go.uber.org/goleak v1.3.0
	ringfence v0.0.0
)

replace ringfence => ../
