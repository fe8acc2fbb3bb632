package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

// TestInvalidPackResponses uses a remote that lists its refs correctly and then sends invalid packs.
func TestInvalidPackResponses(t *testing.T) {
	t.Parallel()
	const shallow, nak = "0034shallow 1111111111111111111111111111111111111111" + "0000", "0008NAK\n"
	band := func(pack string) string { return fmt.Sprintf("%04x\x01%s0000", len(pack)+5, pack) }
	fatal := "fatal: Out of memory, " + secret
	for name, tc := range map[string]struct{ answer, text string }{
		"nothing":            {"", "empty response"},
		"not pkt-lines":      {"echo not Git", "not Git protocol"},
		"an error":           {"0011ERR not today", "Git protocol error"},
		"no pack":            {shallow + nak + "0000", ""},
		"not a pack":         {shallow + nak + band("KCAP"), ""},
		"a cut pack":         {shallow + nak + band("PACK\x00\x00\x00\x02\x00\x00\x00\x05"), ""},
		"too many objects":   {shallow + nak + band("PACK\x00\x00\x00\x02\xff\xff\xff\xff\x95\x0f"), ""},
		"an absurd size":     {shallow + nak + band("PACK\x00\x00\x00\x02\x00\x00\x00\x01\xbf\xff\xff\xff\xff\xff\xff\xff\x7f"+strings.Repeat("x", 40)), ""},
		"a fault on band 3":  {shallow + nak + fmt.Sprintf("%04x\x03%s0000", len(fatal)+5, fatal), "failed while it prepared or sent the pack"},
		"a band that is not": {shallow + nak + "000a\x07hello0000", "unknown side-band"},
		"an ended response":  {shallow + nak + strings.TrimSuffix(band("PACK\x00\x00\x00\x02\x00\x00\x00\x05"), "0000"), "too early"},
		"an ended line":      {shallow + nak + "0100\x01PACK", "too early"},
		"ended before":       {shallow, "too early"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			proxy := newAnsweringProxy(t, w.git.URL(widgets), tc.answer)
			try := func() error {
				req := w.request("")
				req.URL = proxy.url
				_, err := w.volume.Sync(t.Context(), req)
				return err
			}
			mustSay := func(err error) {
				t.Helper()
				mustBeRemotesFault(t, err)
				if !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), secret) {
					t.Errorf("the error does not say %q, or repeats the remote: %v", tc.text, err)
				}
			}
			proxy.on.Store(true)
			mustSay(try())
			proxy.on.Store(false)
			testenv.Must(0, try())(t)
			w.push(map[string]string{"a": "2"})
			proxy.on.Store(true)
			asked := proxy.asked.Load()
			err := try()
			mustSay(err)
			want := int64(1)
			if events.ClassOf(err) == events.ClassCorrupt {
				want = 2 // a pack that does not apply: everything is fetched once
			}
			if n := proxy.asked.Load() - asked; n != want {
				t.Errorf("%d requests for objects, want %d", n, want)
			}
			w.mustBeSound(widgets, commit)
			mustBeTidy(t, w)
		})
	}
}

// answeringProxy forwards requests to a Git server with protocol 0, but answers requests for objects itself while it is on.
type answeringProxy struct {
	url    string
	answer string
	on     atomic.Bool
	asked  atomic.Int64 // requests for objects while it was on
}

func newAnsweringProxy(t *testing.T, upstream, answer string) *answeringProxy {
	target := testenv.Must(url.Parse(upstream))(t)
	pool := &http.Transport{}
	forward := &httputil.ReverseProxy{
		Transport: pool,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Header.Del("Git-Protocol")
		},
	}
	p := &answeringProxy{answer: answer}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && p.on.Load() {
			p.asked.Add(1)
			_, _ = rw.Write([]byte(p.answer))
			return
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() {
		server.Close()
		pool.CloseIdleConnections()
	})
	p.url = server.URL + target.Path
	return p
}

func mustBeRemotesFault(t *testing.T, err error) {
	t.Helper()
	class := events.ClassOf(err)
	if err == nil || events.DispositionOf(err) != events.Retryable || class != events.ClassServer && class != events.ClassCorrupt {
		t.Errorf("got %s, %s: %v", class, events.DispositionOf(err), err)
	}
}

// TestDataAfterPackIsRejected appends data to a valid pack. go-git ignores the data, but Git cannot read such a pack.
func TestDataAfterPackIsRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	pack := testenv.Must(w.git.Git(t.Context(), widgets, "HEAD\n", "pack-objects", "--revs", "--stdout", "-q"))(t)
	pack += strings.Repeat("more", 10)
	answer := "0034shallow " + w.git.Head(widgets, "refs/heads/main") + "00000008NAK\n" +
		fmt.Sprintf("%04x\x01%s0000", len(pack)+5, pack)
	proxy := newAnsweringProxy(t, w.git.URL(widgets), answer)
	proxy.on.Store(true)
	req := w.request("")
	req.URL = proxy.url

	_, err := w.volume.Sync(t.Context(), req)

	mustBeRemotesFault(t, err)
	mustBeTidy(t, w)
}

func TestCancelledWhileReadingAPack(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	pack := testenv.Must(w.git.Git(t.Context(), widgets, "HEAD\n", "pack-objects", "--revs", "--stdout", "-q"))(t)
	q := testenv.Must(object.OpenQuarantine(t.TempDir()))(t)
	file := testenv.Must(q.CreatePack())(t)
	testenv.Must(io.WriteString(file, pack))(t)
	testenv.Must(0, file.Close())(t)
	cancel(cause)
	if err := q.Index(ctx, w.volume.cfg.packLimits(), object.Progress{}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if err := q.Unpack(ctx, q.Dir, w.volume.cfg.packLimits(), object.Progress{}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if err := w.volume.folder(repoPath(t, widgets)).explain(ctx, 1, object.Corruptf("read: %w", cause)); events.ClassOf(err) == events.ClassCorrupt {
		t.Errorf("a cancelled read is taken for a corrupt pack: %v", err)
	}
}

// TestHavesStartWithTheRefsOwnCommit checks the order of haves. Only a few are sent, and the remote sends
// everything that they do not cover.
func TestHavesStartWithTheRefsOwnCommit(t *testing.T) {
	t.Parallel()
	refs := map[string]object.ID{}
	for i := range 100 {
		refs[fmt.Sprintf("refs/heads/%d", i)] = object.ParseID(fmt.Sprintf("%040x", i/2))
	}
	haves := distinct(refs, "refs/heads/98", "refs/heads/99", "refs/heads/90", "refs/heads/none", "")
	if len(haves) != 50 || haves[0] != refs["refs/heads/98"] || haves[1] != refs["refs/heads/90"] || haves[2] != refs["refs/heads/0"] {
		t.Errorf("%d haves, first %v", len(haves), haves[:3])
	}
}
