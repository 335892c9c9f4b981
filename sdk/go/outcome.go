package ringfence

import (
	"net/http"
	"strconv"
	"time"
)

// An outcome is that of one attempt. Nothing else interprets responses.
//
//	response                                       outcome     what follows
//	2xx that reads as expected                     done        the end
//	4xx with a type of Ringfence                   refused     the end
//	429                                            limited     not done; the same node, once it says
//	503 unavailable; nothing was sent              not done    repeat elsewhere
//	504; a 3xx; what no node wrote;                ambiguous   repeat elsewhere
//	an unreadable 2xx; no complete response
//
// A node names its cluster in each 2xx, and in a refusal unless that is for a credential or the like: then its body tells who wrote it.
type outcome struct {
	is       verdict
	response *response
	problem  *Problem
	wait     time.Duration
	why      string
}

type verdict int

const (
	ambiguous verdict = iota
	notDone
	limited
	refused
	done
)

const (
	// usualRetryAfter is how long to wait after a 429 that does not say.
	usualRetryAfter = time.Second
	// longestRetryAfter is what no node asks for.
	longestRetryAfter = time.Minute
)

// outcomeOf judges a response. read reads a 2xx, and fails if it is not as expected.
func outcomeOf(response *response, read func(*response) error) outcome {
	status := response.status
	if status >= 200 && status < 300 && response.cluster != "" {
		if err := read(response); err != nil {
			return outcome{is: ambiguous, response: response, why: "an unreadable answer: " + shown(err.Error())}
		}
		return outcome{is: done, response: response}
	}
	problem := readProblem(response.body, status)
	switch {
	case problem == nil:
		return outcome{is: ambiguous, response: response, why: "a " + strconv.Itoa(status) + " that no node wrote"}
	case status == http.StatusTooManyRequests:
		wait := min(response.retryAfter, longestRetryAfter)
		if wait < 0 {
			wait = usualRetryAfter
		}
		return outcome{is: limited, response: response, problem: problem, wait: wait, why: problem.Detail}
	case problem.Name == "unavailable":
		return outcome{is: notDone, response: response, why: problem.Detail}
	case status >= 400 && status < 500:
		return outcome{is: refused, response: response, problem: problem, why: problem.Detail}
	default:
		return outcome{is: ambiguous, response: response, why: problem.Detail}
	}
}

// outcomeWithout is the outcome if there was no response.
func outcomeWithout(failed *failure) outcome {
	is := notDone
	if failed.wasSent {
		is = ambiguous
	}
	return outcome{is: is, why: shown(failed.why)}
}

func (o outcome) isDefinite() bool {
	return o.is >= limited
}
