package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// limiterLog is a limiter that records what happens, in order.
type limiterLog struct {
	refuse  error // returned by Acquire
	again   int   // how often a request is repeated
	hosts   []string
	answers []Answer
	open    int
}

func (l *limiterLog) Acquire(_ context.Context, host string) (func(Answer) bool, error) {
	l.hosts = append(l.hosts, host)
	if l.refuse != nil {
		return nil, l.refuse
	}
	l.open++
	return func(a Answer) bool {
		l.answers = append(l.answers, a)
		l.open--
		l.again--
		return l.again >= 0
	}, nil
}

var errLimit = events.Errorf(events.Contention, events.ClassBusy, "the host is at its limit")

// dialLimited returns a session with a limiter for a repository on a real server, over HTTP or SSH.
func dialLimited(t *testing.T, overSSH bool, limiter Limiter) (r *Session, server *gitserver.Server, host string) {
	t.Helper()
	server = testenv.Must(gitserver.Start(t.TempDir()))(t)
	t.Cleanup(server.Close)
	testenv.Must(server.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	n := testenv.Must(NewNetwork(Config{}))(t)
	t.Cleanup(n.Close)
	remote, auth := server.URL("acme/widgets"), Auth{}
	if overSSH {
		ssh := testenv.Must(server.StartSSH())(t)
		t.Cleanup(ssh.Close)
		remote, auth = ssh.URL("acme/widgets"), Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()}
	}
	r = testenv.Must(n.Dial(remote, auth, false, Limits{MaxPackBytes: 1 << 20, Timeout: time.Minute, Limiter: limiter}))(t)
	t.Cleanup(r.Close)
	return r, server, testenv.Must(url.Parse(remote))(t).Host
}

func TestLimiterAdmitsEachRequest(t *testing.T) {
	for name, overSSH := range map[string]bool{"HTTP": false, "SSH": true} {
		t.Run(name, func(t *testing.T) {
			limiter := &limiterLog{}
			r, _, host := dialLimited(t, overSSH, limiter)
			testenv.Must(0, r.List(t.Context()))(t)
			if limiter.open != 0 || len(limiter.answers) != 1 {
				t.Fatalf("after the list of refs: %+v", limiter)
			}
			tip := testenv.Must(r.Resolve(""))(t)
			inFlight := 0
			pack := writer(func(p []byte) (int, error) {
				inFlight = max(inFlight, limiter.open)
				return len(p), nil
			})

			testenv.Must(r.Fetch(t.Context(), FetchRequest{Tip: tip.Want, Depth: 1}, pack))(t)

			if inFlight != 1 || limiter.open != 0 || !slices.Equal(limiter.hosts, []string{host, host}) || len(limiter.answers) != 2 {
				t.Fatalf("%d requests in flight during the fetch; %+v", inFlight, limiter)
			}
			for _, a := range limiter.answers {
				if a.Err != nil || a.Latency <= 0 || overSSH != (a.Status == 0) || !overSSH && (a.Status != http.StatusOK || a.Header.Get("Content-Type") == "") {
					t.Errorf("answer %+v", a)
				}
			}
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestLimiterErrorIsReturnedUnchanged(t *testing.T) {
	limiter := &limiterLog{refuse: errLimit}
	r, server, _ := dialLimited(t, false, limiter)
	if err := r.List(t.Context()); err != errLimit {
		t.Errorf("list: %v", err)
	}
	if n := server.Stats("acme/widgets").InfoRefs; n != 0 || len(limiter.answers) != 0 {
		t.Errorf("%d requests, answers %+v", n, limiter.answers)
	}
	limiter.refuse = nil
	testenv.Must(0, r.List(t.Context()))(t)
	limiter.refuse = errLimit
	_, err := r.Fetch(t.Context(), FetchRequest{Tip: testenv.Must(r.Resolve(""))(t).Want, Depth: 1}, io.Discard)
	if err != errLimit {
		t.Errorf("fetch: %v", err)
	}
}

func TestRequestIsRepeatedIfTheLimiterSaysSo(t *testing.T) {
	limiter := &limiterLog{again: 2}
	r, server, _ := dialLimited(t, false, limiter)
	server.Answer("acme/widgets", http.StatusTooManyRequests)
	testenv.MustFail(t, r.List(t.Context()), events.ClassBusy, events.Contention)
	if len(limiter.answers) != 3 || limiter.open != 0 {
		t.Errorf("%+v, want three requests", limiter)
	}
	server.Answer("acme/widgets", 0)
	limiter.again = 1
	testenv.Must(0, r.List(t.Context()))(t)
	testenv.Must(r.Resolve(""))(t)
}

// TestLimiterLearnsOfFailures checks that each request ends with one answer.
func TestLimiterLearnsOfFailures(t *testing.T) {
	status := func(code int, header ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				rw.Header().Set(header[i], header[i+1])
			}
			rw.WriteHeader(code)
		}
	}
	for name, tc := range map[string]struct {
		remote      http.HandlerFunc
		status      int
		class       events.Class
		disposition events.Disposition
		after       time.Duration
	}{
		"limited":   {status(429, "Retry-After", "60"), 429, events.ClassBusy, events.Contention, time.Minute},
		"forbidden": {status(403), 403, events.ClassAuth, events.Permanent, 0},
		"failing":   {status(502), 502, events.ClassServer, events.Retryable, 0},
		"garbage":   {status(200), 200, events.ClassServer, events.Retryable, 0},
		"redirected": {func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/b/") {
				status(429)(rw, r)
				return
			}
			http.Redirect(rw, r, "/b"+r.URL.RequestURI(), http.StatusFound)
		}, 429, events.ClassBusy, events.Contention, 0},
		"cut off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, events.ClassNetwork, events.Retryable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.remote)
			defer server.Close()
			n := testenv.Must(NewNetwork(Config{}))(t)
			defer n.Close()
			limiter := &limiterLog{}
			r := testenv.Must(n.Dial(server.URL+"/acme/widgets", Auth{Username: "ada", Password: secret}, false, Limits{Timeout: time.Minute, Limiter: limiter}))(t)
			defer r.Close()

			err := r.List(t.Context())

			testenv.MustFail(t, err, tc.class, tc.disposition)
			if events.RetryAfter(err) != tc.after {
				t.Errorf("retry after %v, want %v", events.RetryAfter(err), tc.after)
			}
			if len(limiter.answers) != 1 {
				t.Fatalf("answers %+v", limiter.answers)
			}
			if a := limiter.answers[0]; a.Status != tc.status || !errors.Is(a.Err, err) || (a.Header == nil) != (tc.status == 0) {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func TestLimiterLearnsOfRefusedSSHConnection(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	testenv.Must(0, listener.Close())(t)
	server := testenv.Must(gitserver.Start(t.TempDir()))(t)
	defer server.Close()
	ssh := testenv.Must(server.StartSSH())(t)
	defer ssh.Close()
	n := testenv.Must(NewNetwork(Config{}))(t)
	defer n.Close()
	limiter := &limiterLog{}
	auth := Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()}
	r := testenv.Must(n.Dial("ssh://git@"+address+"/acme/widgets", auth, false, Limits{Timeout: time.Minute, Limiter: limiter}))(t)
	defer r.Close()

	err := r.List(t.Context())

	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	if len(limiter.answers) != 1 || limiter.answers[0].Status != 0 || limiter.answers[0].Latency != 0 || !limiter.answers[0].Unreachable || !errors.Is(limiter.answers[0].Err, err) {
		t.Errorf("answers %+v", limiter.answers)
	}
}

// TestNoAnswer uses a server that accepts requests and never answers.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := roundTripper(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		w := newMonitor(never)
		for path, want := range map[string]time.Duration{"/a/b/info/refs": w.timeouts.Refs, "/a/b/git-upload-pack": w.timeouts.Pack} {
			w.begin()
			began := time.Now()
			req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.org"+path, nil))(t)
			_, err := exchange{w, strings.HasSuffix(path, "info/refs")}.RoundTrip(req)
			if took := time.Since(began); err == nil || took != want {
				t.Errorf("%s: %v after %v, want %v", path, err, took, want)
			}
			testenv.MustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstError(), err), events.ClassNetwork, events.Retryable)
		}
	})
}
