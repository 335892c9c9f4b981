package ringfence

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestWhatAResponseMeans(t *testing.T) {
	const urn = `{"type":"urn:ringfence:problem:`
	grant := `{"lease_id":"id","state":"granted","token":9007199254740991,"ttl_ms":1000,"expires_in_ms":1000,"keys":[{"key":"a","fence":9007199254740992}]}`
	for _, one := range []struct {
		status int
		body   string
		is     verdict
	}{
		{200, grant, done},
		{200, `{"lease_id":"other","state":"granted","token":1,"ttl_ms":1,"expires_in_ms":1,"keys":[{"key":"a","fence":1}]}`, ambiguous},
		{200, `{"lease_id":"id","state":"granted","token":9007199254740993,"ttl_ms":1,"expires_in_ms":1,"keys":[{"key":"a","fence":1}]}`, ambiguous},
		{200, `{"lease_id":"id","state":"granted","token":1,"ttl_ms":1,"keys":[{"key":"a","fence":1}]}`, ambiguous},
		{200, "<html>", ambiguous},
		{307, "", ambiguous},
		{404, "<html>", ambiguous},
		{404, urn + `unknown-lease","status":404}`, refused},
		{409, urn + `held","status":409}`, refused},
		{409, urn + `held","status":410}`, ambiguous},
		{429, urn + `overloaded","status":429}`, limited},
		{503, urn + `unavailable","status":503}`, notDone},
		{503, "busy", ambiguous},
		{504, urn + `indeterminate","status":504}`, ambiguous},
	} {
		answered := &response{status: one.status, body: []byte(one.body), cluster: "c", retryAfter: -1}
		got := outcomeOf(answered, func(answered *response) error {
			_, err := readGrant(answered.body, "id")
			return err
		})
		if got.is != one.is {
			t.Errorf("%d %s is %d, not %d", one.status, one.body, got.is, one.is)
		}
	}
}

func TestWhatNamesNoClusterIsDoneByNoNode(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204} {
		got := outcomeOf(&response{status: status}, func(*response) error { return nil })
		if got.is != ambiguous {
			t.Errorf("%d is %d", status, got.is)
		}
	}
}

func TestNothingThatOthersWroteReachesATerminalAsItIs(t *testing.T) {
	odd := "\x1b[2J" + strings.Repeat("A", 20_000)
	unread := func(*response) error { return errors.New(odd) }
	for _, got := range []outcome{
		outcomeWithout(&failure{why: odd}),
		outcomeOf(&response{status: 200, cluster: "c"}, unread),
		outcomeOf(&response{status: 400, body: encode(map[string]any{"type": urn + "held", "status": 400, "detail": odd})}, unread),
	} {
		if !strings.Contains(got.why, "\uFFFD[2JAA") || strings.Contains(got.why, "\x1b") || len(got.why) > longestDetail+100 {
			t.Errorf("%.30q of %d bytes", got.why, len(got.why))
		}
	}
}

func TestTokensOf53BitsAreExact(t *testing.T) {
	body := `{"lease_id":"id","state":"granted","token":9007199254740991,"ttl_ms":1,"expires_in_ms":1,"keys":[{"key":"a","fence":9007199254740992}]}`
	granted, err := readGrant([]byte(body), "id")
	if err != nil || granted.token != 1<<53-1 || granted.keys[0].fence != 1<<53 {
		t.Error(granted, err)
	}
}

func TestWhatNoNodeAnswersABatchIsTheAnswerOfNoCall(t *testing.T) {
	refusals := `{"results":[{"status":404,"body":{"type":"urn:ringfence:problem:unknown-lease","status":404}},{"status":413,"body":{}}]}`
	for _, whole := range []*response{{status: 204, cluster: "c"}, {status: 200, body: []byte(refusals)}} {
		calls := []*batched{{answered: make(chan answer, 1)}, {answered: make(chan answer, 1)}}
		newBatcher(&node{url: "http://a"}).split(calls, whole)
		for _, call := range calls {
			got := <-call.answered
			if failed, isFailure := got.err.(*failure); !isFailure || !failed.wasSent {
				t.Error(whole.status, got)
			}
		}
	}
}

func TestADetailIsShort(t *testing.T) {
	text := strings.Repeat("é", 10_000) + "\x1b[2J"
	body, err := json.Marshal(map[string]any{"type": urn + "forbidden", "status": 403, "detail": "\x1b[2J" + text})
	if err != nil {
		t.Fatal(err)
	}
	detail := readProblem(body, 403).Detail
	if !strings.HasPrefix(detail, "\ufffd[2Jé") || len(detail) > 2*longestDetail {
		t.Errorf("%q", detail)
	}
}

func TestACampaignOutlastsALimit(t *testing.T) {
	if !isPassing(&RejectedError{Problem: Problem{Status: 429}}) || isPassing(&RejectedError{Problem: Problem{Status: 400}}) {
		t.Error("a limit ends a campaign, or a refusal does not")
	}
}
