package volume

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestInvalidPackBeforeLostConnection sends a pack that has fewer objects than it declares, and closes the connection when everything is
// requested instead: the error is that of the pack.
func TestInvalidPackBeforeLostConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	var head string // once its packs are invalid
	target := testenv.Must(url.Parse(w.git.URL(widgets)))(t)
	var packs atomic.Int64
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
		r.Out.Header.Del("Git-Protocol")
	}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || head == "" {
			forward.ServeHTTP(rw, r)
			return
		}
		if packs.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		pack := "PACK\x00\x00\x00\x02\x00\x00\x00\x05" + strings.Repeat("x", 40)
		fmt.Fprintf(rw, "%04xshallow %s00000008NAK\n%04x\x01%s0000", len("0000shallow ")+len(head), head, len(pack)+5, pack)
	}))
	defer server.Close()
	req := w.request("")
	req.URL = server.URL + target.Path
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	head = w.push(map[string]string{"a": "2"})
	req = w.request("")
	req.URL = server.URL + target.Path

	_, err := w.volume.Sync(t.Context(), req)

	if events.ClassOf(err) != events.ClassCorrupt || events.DispositionOf(err) != events.Retryable || packs.Load() < 2 {
		t.Errorf("got %s, %s after %d requests: %v", events.ClassOf(err), events.DispositionOf(err), packs.Load(), err)
	}
}
