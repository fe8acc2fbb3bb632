package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"lockstep/events"
)

// TestNoErrorRepeatsTheRemote has a remote break HTTP itself in ways that net/http quotes.
func TestNoErrorRepeatsTheRemote(t *testing.T) {
	for name, answer := range map[string]string{
		"no HTTP":        "echo " + secret + "\r\n\r\n",
		"a bad status":   "HTTP/1.1 " + secret + "\r\n\r\n",
		"a bad header":   "HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n",
		"a bad length":   "HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n",
		"a bad encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + secret + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			req := w.request("")
			req.URL = "http://" + answerRaw(t, answer) + "/acme/widgets"

			_, err := w.volume.Sync(t.Context(), req)

			mustFail(t, err, events.ClassNetwork, events.Retryable)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats the remote: %v", err)
			}
		})
	}
}

// answerRaw answers every connection with the same bytes.
func answerRaw(t *testing.T, answer string) (address string) {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return listener.Addr().String()
}

func TestACertificateThatDoesNotVerify(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	req := w.request("")
	req.URL = server.URL + "/acme/widgets"
	_, err := w.volume.Sync(t.Context(), req)
	mustFail(t, err, events.ClassNetwork, events.Retryable)
	if !strings.Contains(err.Error(), "certificate") || !strings.Contains(err.Error(), "authority") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
}

func TestDefaultBranchesThatAreNone(t *testing.T) {
	for name, branch := range map[string]string{
		"two lines":   "refs/heads/a\nb",
		"no ref":      "main",
		"HEAD itself": "HEAD",
		"escaping":    "refs/heads/../../x",
	} {
		t.Run(name, func(t *testing.T) {
			const hash = "1111111111111111111111111111111111111111"
			line := func(s string) string { return fmt.Sprintf("%04x%s\n", len(s)+5, s) }
			advert := line("# service=git-upload-pack") + "0000" +
				line(hash+" HEAD\x00symref=HEAD:"+branch+" shallow") + line(hash+" main") + line(hash+" HEAD") + line(hash+" refs/heads/main") + "0000"
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
				_, _ = io.WriteString(rw, advert)
			}))
			defer server.Close()
			w := newWorld(t)
			req := w.request("")
			req.URL = server.URL + "/acme/widgets"

			_, err := w.volume.Sync(t.Context(), req)

			mustFail(t, err, events.ClassNoRef, events.Permanent)
			if strings.Contains(err.Error(), `"`) {
				t.Errorf("the error repeats the remote: %v", err)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	limit := http.Header{"Retry-After": {"60"}}
	for _, tc := range []struct {
		code        int
		header      http.Header
		class       events.Class
		disposition events.Disposition
	}{
		{401, limit, events.ClassAuth, events.Permanent},
		{403, nil, events.ClassAuth, events.Permanent},
		{403, http.Header{"X-Ratelimit-Remaining": {"5"}}, events.ClassAuth, events.Permanent},
		{403, limit, events.ClassServer, events.Retryable},
		{403, http.Header{"X-Ratelimit-Remaining": {"0"}}, events.ClassServer, events.Retryable},
		{404, limit, events.ClassNotFound, events.Permanent},
		{429, nil, events.ClassServer, events.Retryable},
		{503, limit, events.ClassServer, events.Retryable},
	} {
		status := statusOf(&http.Response{StatusCode: tc.code, Header: tc.header})
		mustFail(t, remoteError(t.Context(), "example.org", Auth{BearerToken: secret}, status, status), tc.class, tc.disposition)
	}
}

// TestTheNameOfARedirect is the remote's word, and not repeated.
func TestTheNameOfARedirect(t *testing.T) {
	moved := httptest.NewServer(http.RedirectHandler("http://"+secret+".invalid/info/refs", http.StatusFound))
	defer moved.Close()
	w := newWorld(t)
	req := w.request("")
	req.URL = moved.URL + "/acme/widgets"
	_, err := w.volume.Sync(t.Context(), req)
	mustFail(t, err, events.ClassNetwork, events.Retryable)
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error repeats the remote: %v", err)
	}
}

// TestManyLinesBeforeThePack has a server go on about where the history ends, and what is common.
func TestManyLinesBeforeThePack(t *testing.T) {
	notUnderRace(t)
	const hash = "1111111111111111111111111111111111111111"
	shallow, ack, band := "0034shallow "+hash, "0038ACK "+hash+" common\n", "0006\x01x"
	for name, tc := range map[string]struct {
		answer string
		many   bool
	}{
		"shallow":             {strings.Repeat(shallow, maxPrologue/len(shallow)+1), true},
		"common":              {shallow + "00000008NAK\n" + strings.Repeat(ack, maxPrologue/len(ack)+1), true},
		"flushes":             {strings.Repeat("0000", maxPrologue/4+1), true},
		"after a side-band":   {band + strings.Repeat(shallow, maxPrologue/len(shallow)+1), true},
		"as many as may be":   {strings.Repeat(shallow, maxPrologue/len(shallow)), false},
		"a side-band":         {shallow + "00000008NAK\n" + strings.Repeat(band, maxPrologue/len(band)*2), false},
		"without a side-band": {shallow + "00000008NAK\nPACK" + strings.Repeat("0000", maxPrologue), false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, step := range []int{1 << 20, 7} {
				w := &wire{maxPack: 1 << 30}
				body := w.bound(t.Context(), func(error) {}, io.NopCloser(strings.NewReader(tc.answer)), false)
				_, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{body}, make([]byte, step))
				w.close()
				if (err != nil) != tc.many {
					t.Errorf("by %d bytes: %v", step, err)
				}
				if tc.many {
					mustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstFault(), err), events.ClassQuota, events.Permanent)
				}
			}
		})
	}
}

func TestShallowAfter(t *testing.T) {
	h := func(n int) plumbing.Hash { return plumbing.NewHash(fmt.Sprintf("%040x", n)) }
	update := packp.ShallowUpdate{Shallows: []plumbing.Hash{h(2), h(3), h(3), h(4)}, Unshallows: []plumbing.Hash{h(1), h(4), h(9)}}
	got := shallowAfter([]plumbing.Hash{h(1), h(2), h(5)}, update)
	if want := []plumbing.Hash{h(2), h(5), h(3), h(4)}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// dripping gives a byte at a time, with a pause before each.
type dripping struct {
	io.Reader
	pause time.Duration
}

func (d dripping) Read(p []byte) (int, error) {
	time.Sleep(d.pause)
	return d.Reader.Read(p[:1])
}

// TestARemoteThatTrickles never falls silent for long, nor sends much: it must not hold a lease for
// a day.
func TestARemoteThatTrickles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{maxPack: 1 << 30, next: roundTripper(func(*http.Request) (*http.Response, error) {
			body := dripping{bytes.NewReader(make([]byte, 3000)), idleTimeout / 2}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
		})}
		defer w.close()
		req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://example.org/a/b/git-upload-pack", nil))(t)
		res := must(w.RoundTrip(req))(t)
		defer res.Body.Close()
		began := time.Now()

		_, err := io.Copy(io.Discard, res.Body)

		if took := time.Since(began); err == nil || took > 20*time.Minute {
			t.Errorf("read for %v: %v", took, err)
		}
		err = remoteError(context.Background(), "example.org", Auth{}, w.firstFault(), errors.New("reading"))
		mustFail(t, err, events.ClassNetwork, events.Retryable)
	})
}
