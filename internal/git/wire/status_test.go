package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

func TestHTTPStatus(t *testing.T) {
	limit := http.Header{"Retry-After": {"60"}}
	for _, tc := range []struct {
		code        int
		header      http.Header
		class       events.Class
		disposition events.Disposition
		after       time.Duration
	}{
		{401, limit, events.ClassAuth, events.Permanent, 0},
		{403, nil, events.ClassAuth, events.Permanent, 0},
		{403, http.Header{"X-Ratelimit-Remaining": {"5"}}, events.ClassAuth, events.Permanent, 0},
		{403, limit, events.ClassBusy, events.Retryable, time.Minute},
		{403, http.Header{"X-Ratelimit-Remaining": {"0"}}, events.ClassBusy, events.Retryable, 0},
		{404, limit, events.ClassNotFound, events.Permanent, 0},
		{429, nil, events.ClassBusy, events.Retryable, 0},
		{429, limit, events.ClassBusy, events.Retryable, time.Minute},
		{503, nil, events.ClassServer, events.Retryable, 0},
		{503, limit, events.ClassBusy, events.Retryable, time.Minute},
		{503, http.Header{"X-Ratelimit-Remaining": {"0"}}, events.ClassBusy, events.Retryable, 0},
		{502, limit, events.ClassServer, events.Retryable, 0},
	} {
		status := statusOf(&http.Response{StatusCode: tc.code, Header: tc.header}, time.Now())
		err := remoteError(t.Context(), "example.org", Auth{BearerToken: secret}, status, status)
		testenv.MustFail(t, err, tc.class, tc.disposition)
		if events.RetryAfter(err) != tc.after {
			t.Errorf("%d, %v: retry after %v, want %v", tc.code, tc.header, events.RetryAfter(err), tc.after)
		}
	}
}

// TestManyLinesBeforePack limits the lines about shallow and common commits under protocol 0.
func TestManyLinesBeforePack(t *testing.T) {
	const hash = "1111111111111111111111111111111111111111"
	shallow, ack := "0034shallow "+hash, "0038ACK "+hash+" common\n"
	for name, tc := range map[string]struct {
		answer string
		many   bool
	}{
		"shallow":      {strings.Repeat(shallow, maxPrologue/len(shallow)+1), true},
		"common":       {shallow + "00000008NAK\n" + strings.Repeat(ack, maxPrologue/50), true},
		"at the limit": {strings.Repeat(shallow, maxPrologue/len(shallow)-1) + "00000008NAK\n", false},
	} {
		_, err := readPackStart0(bufio.NewReader(strings.NewReader(tc.answer)), true)
		if errors.Is(err, errLongPrologue) != tc.many || err != nil && !tc.many {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShallowAfter(t *testing.T) {
	h := func(n int) object.ID { return object.ParseID(fmt.Sprintf("%040x", n)) }
	update := shallowUpdate{shallow: []object.ID{h(2), h(3), h(3), h(4)}, unshallow: []object.ID{h(1), h(4), h(9)}}
	got := shallowAfter([]object.ID{h(1), h(2), h(5)}, update)
	if want := []object.ID{h(2), h(5), h(3), h(4)}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// slowReader returns a byte at a time after a pause.
type slowReader struct {
	io.Reader
	pause time.Duration
}

func (d slowReader) Read(p []byte) (int, error) {
	time.Sleep(d.pause)
	return d.Reader.Read(p[:1])
}

// TestSlowRemote checks that a remote that sends a few bytes at a time is given up.
func TestSlowRemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMonitor(roundTripper(func(*http.Request) (*http.Response, error) {
			body := slowReader{bytes.NewReader(make([]byte, 3000)), 30 * time.Second}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
		}))
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://example.org/a/b/git-upload-pack", nil))(t)
		res := testenv.Must(exchange{w, false}.RoundTrip(req))(t)
		defer res.Body.Close()
		began := time.Now()

		_, err := io.Copy(io.Discard, res.Body)

		if took := time.Since(began); err == nil || took > 20*time.Minute {
			t.Errorf("read for %v: %v", took, err)
		}
		err = remoteError(context.Background(), "example.org", Auth{}, w.firstError(), errors.New("reading"))
		testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	})
}

func TestAuthIsRedacted(t *testing.T) {
	auth := Auth{Username: "ada", Password: secret, BearerToken: secret}
	text := testenv.Must(auth.MarshalText())(t)
	for _, printed := range []string{
		fmt.Sprint(auth), fmt.Sprintf("%v %+v %#v %s %q", auth, auth, auth, auth, auth),
		fmt.Sprintf("%+v", struct{ Auth Auth }{auth}), auth.LogValue().String(), string(text),
	} {
		if strings.Contains(printed, secret) {
			t.Errorf("printed as %s", printed)
		}
	}
}
