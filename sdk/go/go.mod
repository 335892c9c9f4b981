module ringfence

go 1.24
