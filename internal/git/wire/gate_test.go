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

// gateLog is a gate that records what happens, in order.
type gateLog struct {
	refuse  error // returned by Enter
	stop    error // returned by Done
	hosts   []string
	answers []Answer
	open    int
}

func (g *gateLog) Enter(_ context.Context, host string, _ bool) (Permit, error) {
	g.hosts = append(g.hosts, host)
	if g.refuse != nil {
		return nil, g.refuse
	}
	g.open++
	return g, nil
}

func (g *gateLog) Done(_ context.Context, a Answer) error {
	g.answers = append(g.answers, a)
	g.open--
	return g.stop
}

var errLimit = events.Errorf(events.Contention, events.ClassLimited, "the host is at its limit")

// dialGated returns a session with a gate for a repository on a real server, over HTTP or SSH.
func dialGated(t *testing.T, overSSH bool, gate Gate) (r *Session, server *gitserver.Server, host string) {
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
	r = testenv.Must(n.Dial(remote, auth, false, Limits{MaxPackBytes: 1 << 20, Timeout: time.Minute, Gate: gate}))(t)
	t.Cleanup(r.Close)
	return r, server, testenv.Must(url.Parse(remote))(t).Host
}

func TestGateAdmitsEachRequest(t *testing.T) {
	for name, overSSH := range map[string]bool{"HTTP": false, "SSH": true} {
		t.Run(name, func(t *testing.T) {
			gate := &gateLog{}
			r, _, host := dialGated(t, overSSH, gate)
			testenv.Must(0, r.List(t.Context()))(t)
			if gate.open != 0 || len(gate.answers) != 1 {
				t.Fatalf("after the list of refs: %+v", gate)
			}
			tip := testenv.Must(r.Resolve(""))(t)
			inFlight := 0
			pack := writer(func(p []byte) (int, error) {
				inFlight = max(inFlight, gate.open)
				return len(p), nil
			})

			testenv.Must(r.Fetch(t.Context(), FetchRequest{Tip: tip.Want, Depth: 1}, pack))(t)

			if inFlight != 1 || gate.open != 0 || !slices.Equal(gate.hosts, []string{host, host}) || len(gate.answers) != 2 {
				t.Fatalf("%d permits during the fetch; %+v", inFlight, gate)
			}
			for _, a := range gate.answers {
				if a.Err != nil || a.Latency <= 0 || overSSH != (a.Status == 0) || !overSSH && (a.Status != http.StatusOK || a.Header.Get("Content-Type") == "") {
					t.Errorf("answer %+v", a)
				}
			}
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestGateErrorIsReturnedUnchanged(t *testing.T) {
	gate := &gateLog{refuse: errLimit}
	r, server, _ := dialGated(t, false, gate)
	if err := r.List(t.Context()); err != errLimit {
		t.Errorf("list: %v", err)
	}
	if n := server.Stats("acme/widgets").InfoRefs; n != 0 || len(gate.answers) != 0 {
		t.Errorf("%d requests, answers %+v", n, gate.answers)
	}
	gate.refuse = nil
	testenv.Must(0, r.List(t.Context()))(t)
	gate.refuse = errLimit
	_, err := r.Fetch(t.Context(), FetchRequest{Tip: testenv.Must(r.Resolve(""))(t).Want, Depth: 1}, io.Discard)
	if err != errLimit {
		t.Errorf("fetch: %v", err)
	}
	gate.refuse, gate.stop = nil, errLimit
	if err := r.List(t.Context()); err != errLimit {
		t.Errorf("list that must stop: %v", err)
	}
}

// TestGateLearnsOfFailures checks that each request ends with one Done.
func TestGateLearnsOfFailures(t *testing.T) {
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
		"limited":   {status(429, "Retry-After", "60"), 429, events.ClassLimited, events.Contention, time.Minute},
		"forbidden": {status(403), 403, events.ClassAuth, events.Permanent, 0},
		"failing":   {status(502), 502, events.ClassServer, events.Retryable, 0},
		"garbage":   {status(200), 200, events.ClassServer, events.Retryable, 0},
		"redirected": {func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/b/") {
				status(429)(rw, r)
				return
			}
			http.Redirect(rw, r, "/b"+r.URL.RequestURI(), http.StatusFound)
		}, 429, events.ClassLimited, events.Contention, 0},
		"cut off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, events.ClassNetwork, events.Retryable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.remote)
			defer server.Close()
			n := testenv.Must(NewNetwork(Config{}))(t)
			defer n.Close()
			gate := &gateLog{}
			r := testenv.Must(n.Dial(server.URL+"/acme/widgets", Auth{Username: "ada", Password: secret}, false, Limits{Timeout: time.Minute, Gate: gate}))(t)
			defer r.Close()

			err := r.List(t.Context())

			testenv.MustFail(t, err, tc.class, tc.disposition)
			if events.RetryAfter(err) != tc.after {
				t.Errorf("retry after %v, want %v", events.RetryAfter(err), tc.after)
			}
			if len(gate.answers) != 1 {
				t.Fatalf("answers %+v", gate.answers)
			}
			if a := gate.answers[0]; a.Status != tc.status || !errors.Is(a.Err, err) || (a.Header == nil) != (tc.status == 0) {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func TestGateLearnsOfRefusedSSHConnection(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	testenv.Must(0, listener.Close())(t)
	server := testenv.Must(gitserver.Start(t.TempDir()))(t)
	defer server.Close()
	ssh := testenv.Must(server.StartSSH())(t)
	defer ssh.Close()
	n := testenv.Must(NewNetwork(Config{}))(t)
	defer n.Close()
	gate := &gateLog{}
	auth := Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()}
	r := testenv.Must(n.Dial("ssh://git@"+address+"/acme/widgets", auth, false, Limits{Timeout: time.Minute, Gate: gate}))(t)
	defer r.Close()

	err := r.List(t.Context())

	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
	if len(gate.answers) != 1 || gate.answers[0].Status != 0 || gate.answers[0].Latency != 0 || !errors.Is(gate.answers[0].Err, err) {
		t.Errorf("answers %+v", gate.answers)
	}
}

// TestNoAnswer uses a server that accepts requests and never answers: the list of refs has a shorter limit than a pack.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := roundTripper(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		w := &monitor{maxPack: 1 << 20, next: never}
		defer w.close()
		for path, want := range map[string]time.Duration{"/a/b/info/refs": refsTimeout, "/a/b/git-upload-pack": headerTimeout} {
			w.begin()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), headerTimeout) // stands for the transport's limit
			req := testenv.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://example.org"+path, nil))(t)
			_, err := exchange{w, strings.HasSuffix(path, "info/refs")}.RoundTrip(req)
			cancel()
			if took := time.Since(began); err == nil || took != want {
				t.Errorf("%s: %v after %v, want %v", path, err, took, want)
			}
			testenv.MustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstError(), err), events.ClassNetwork, events.Retryable)
		}
	})
}
