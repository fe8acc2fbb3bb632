package volume

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gogitserver "github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestOtherServers syncs from other server implementations. Dulwich supports shallow and thin packs and refuses
// capabilities that it did not offer. go-git supports neither shallow fetches nor side-bands nor thin packs: it sends
// complete histories.
func TestOtherServers(t *testing.T) {
	onlySHA1(t)
	t.Parallel()
	for name, start := range map[string]func(*world) string{"dulwich": startDulwich, "go-git": startGoGit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.t = t
			base := start(w)
			sync := func(ref string) SyncResult {
				t.Helper()
				req := w.request(ref)
				req.URL = base
				return testenv.Must(w.volume.Sync(t.Context(), req))(t)
			}
			w.create(map[string]string{"a": "1", "dir/b": strings.Repeat("many lines\n", 1000)})
			first := w.push(map[string]string{"a": "2"})
			if res := sync(""); res.After != first || res.Ref.String() != "refs/heads/main" {
				t.Errorf("got %+v", res)
			}
			w.mustBeSound(widgets, first)

			second := w.push(map[string]string{"dir/b": strings.Repeat("many lines\n", 1000) + "and one"})
			if res := sync(""); len(res.Files) != 1 || res.Full {
				t.Errorf("got %+v", res)
			}
			w.mustBeSound(widgets, second)

			forced := w.commit(gitserver.Main, gitserver.Edit{Parent: first, Write: map[string]string{"c": "3"}})
			sync("")
			w.mustBeSound(widgets, forced)

			branch := w.commit("topic", gitserver.Edit{Parent: second, Write: map[string]string{"d": "4"}})
			w.mustBeSound(sync("topic").Path, branch)

			req := w.request("none")
			req.URL = base
			_, err := w.volume.Sync(t.Context(), req)
			testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
		})
	}
}

// TestGoGitOpensATree opens a tree in the way of docs/reading.md.
func TestGoGitOpensATree(t *testing.T) {
	onlySHA1(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "dir/b": "2"})
	commit := w.push(map[string]string{"a": "2"})
	res := testenv.Must(w.volume.Sync(t.Context(), w.request("")))(t)
	dir := testenv.Must(filepath.EvalSymlinks(filepath.Join(w.volume.Root(), res.Path)))(t)

	objects := filesystem.Options{AlternatesFS: osfs.New(filepath.Join(dir, "../.."))}
	storage := filesystem.NewStorageWithOptions(osfs.New(filepath.Join(dir, ".git")), cache.NewObjectLRUDefault(), objects)
	head := testenv.Must(storer.ResolveReference(storage, plumbing.HEAD))(t)
	found := testenv.Must(object.GetCommit(storage, head.Hash()))(t)
	file := testenv.Must(found.File("a"))(t)
	if content := testenv.Must(file.Contents())(t); head.Hash().String() != commit || content != "2" {
		t.Errorf("%s with %q, want %s with 2", head.Hash(), content, commit)
	}
}

func startDulwich(w *world) string {
	server, err := w.git.StartDulwich()
	if errors.Is(err, gitserver.ErrNoDulwich) && os.Getenv("LOCKSTEP_TEST_DULWICH") != "real" {
		w.t.Skip(err)
	}
	testenv.Must(0, err)(w.t)
	w.t.Cleanup(server.Close)
	return server.URL(widgets)
}

// startGoGit serves repositories over HTTP with go-git's server, which has no HTTP handler.
func startGoGit(w *world) string {
	loader := gogitserver.NewFilesystemLoader(osfs.New("/"))
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if err := serveGoGit(rw, r, gogitserver.NewServer(loader), w.git.Dir(widgets)); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	}))
	w.t.Cleanup(server.Close)
	return server.URL + "/acme/widgets.git"
}

func serveGoGit(rw http.ResponseWriter, r *http.Request, server transport.Transport, dir string) error {
	endpoint, err := transport.NewEndpoint(dir)
	if err != nil {
		return err
	}
	session, err := server.NewUploadPackSession(endpoint, nil)
	if err != nil {
		return err
	}
	refs, err := session.AdvertisedReferencesContext(r.Context())
	if err != nil {
		return err
	}
	if r.Method == http.MethodGet {
		refs.Prefix = [][]byte{[]byte("# service=git-upload-pack"), pktline.Flush}
		return refs.Encode(rw)
	}
	req := packp.NewUploadPackRequest()
	if err := req.UploadRequest.Decode(r.Body); err != nil {
		return err
	}
	lines := pktline.NewScanner(r.Body)
	for lines.Scan() {
		var have string
		if n, _ := fmt.Sscanf(string(lines.Bytes()), "have %s", &have); n == 1 {
			req.Haves = append(req.Haves, plumbing.NewHash(have))
		}
	}
	res, err := session.UploadPack(r.Context(), req)
	if err != nil {
		return err
	}
	return res.Encode(rw)
}

// TestGitProtocolErrors tests errors that the remote sends with HTTP status 200.
func TestGitProtocolErrors(t *testing.T) {
	t.Parallel()
	line := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	const advert = "001e# service=git-upload-pack\n0000"
	for name, tc := range map[string]struct {
		kind, body  string
		class       events.Class
		disposition events.Disposition
	}{
		"not found":     {"", advert + line("ERR Repository not found. "+secret+"\n"), events.ClassNotFound, events.Permanent},
		"no preamble":   {"", line("ERR access denied or repository not exported: /" + secret), events.ClassAuth, events.Permanent},
		"another error": {"", advert + line("ERR too busy "+secret), events.ClassServer, events.Retryable},
		"a web page":    {"text/html; charset=utf-8", "<html>" + secret, events.ClassServer, events.Retryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				if tc.kind == "" {
					tc.kind = "application/x-git-upload-pack-advertisement"
				}
				rw.Header().Set("Content-Type", tc.kind)
				_, _ = rw.Write([]byte(tc.body))
			}))
			defer server.Close()
			w := newWorld(t)
			req := w.request("")
			req.URL = server.URL + "/acme/widgets"
			_, err := w.volume.Sync(t.Context(), req)
			testenv.MustFail(t, err, tc.class, tc.disposition)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats the remote: %v", err)
			}
		})
	}
}

// TestAcknowledgementFormats uses a server that acknowledges each common commit.
func TestAcknowledgementFormats(t *testing.T) {
	onlySHA1(t)
	t.Parallel()
	for name, acks := range map[string]string{
		"one":                "ACK %s",
		"multi_ack":          "ACK %s continue|NAK|ACK %s",
		"multi_ack_detailed": "ACK %s common|ACK %s ready|NAK|ACK %s",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			proxy := newAnsweringProxy(t, w.git.URL(widgets), "")
			req := w.request("")
			req.URL = proxy.url
			first := testenv.Must(w.volume.Sync(t.Context(), req))(t).After
			second := w.push(map[string]string{"a": "2"})
			pack := testenv.Must(w.git.Git(t.Context(), widgets, second+"\n^"+first+"\n", "pack-objects", "--revs", "--stdout", "-q", "--thin"))(t)
			answer := "0034shallow " + second + "0000"
			for line := range strings.SplitSeq(strings.ReplaceAll(acks, "%s", first), "|") {
				answer += fmt.Sprintf("%04x%s\n", len(line)+5, line)
			}
			proxy.answer = answer + fmt.Sprintf("%04x\x01%s0000", len(pack)+5, pack)
			proxy.on.Store(true)
			req = w.request("")
			req.URL = proxy.url
			testenv.Must(w.volume.Sync(t.Context(), req))(t)
			w.mustBeSound(widgets, second)
		})
	}
}
