package server_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/feed"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// library is a reader of a volume with acme/widgets, which docs watches, and acme/secret, which it does not.
type library struct {
	*testing.T
	git        *gitserver.Server
	vol        *volume.Volume
	redis      *redistest.Server
	client     redis.UniversalClient
	registry   *watch.Registry
	cfg        server.Config
	url        string
	docs, scan string // tokens
	fence      uint64
	depth      events.Depth
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	l := &library{T: t, git: testenv.Must(gitserver.Start(filepath.Join(t.TempDir(), "remote")))(t), redis: redistest.Start(t), fence: 100}
	t.Cleanup(l.git.Close)
	l.vol = testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(l.vol.Close)
	l.client = l.redis.Client()
	namespace := events.DefaultNamespace
	tokens := access.NewTokens(l.client, namespace)
	l.registry = watch.NewRegistry(l.client, namespace)
	for app, token := range map[string]*string{"docs": &l.docs, "scan": &l.scan} {
		var err error
		if _, *token, err = tokens.Create(t.Context(), app); err != nil {
			t.Fatal(err)
		}
	}
	for _, repo := range []string{"acme/widgets", "acme/secret"} {
		testenv.Must(l.git.Create(t.Context(), repo, map[string]string{"README": repo + "\n"}))(t)
	}
	l.watch("docs", "acme/widgets", "")
	l.watch("scan", "acme/secret", "")
	l.cfg = server.Config{
		Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler), Token: fixed("operator"), Loopback: true,
		Reading: &server.Reading{Tokens: tokens, Reader: &access.Reader{
			Watches: l.registry, States: state.NewStore(l.client, namespace),
			Volume: func(context.Context) (*volume.Volume, error) { return volume.ViewVolume(l.vol.Root()) },
		}},
	}
	l.cfg.Reading.MaxStreams = 16
	l.cfg.Reading.Feed, l.cfg.Reading.Followers = newFeed(t, l.redis, l.cfg.Reading), feed.NewFollowers(l.client, "", namespace, namespace)
	l.serve()
	return l
}

func (l *library) serve() {
	srv := httptest.NewServer(documented(l.T, l.cfg))
	l.Cleanup(srv.Close)
	l.url = srv.URL + "/api/v1/repos/"
}

func (l *library) watch(app, repo, ref string) {
	l.Helper()
	path := testenv.Must(events.ParseRepoPath(repo))(l.T)
	testenv.Must(l.registry.Put(l.Context(), watch.Watch{App: app, URL: l.git.URL(repo), Repo: path, Ref: testenv.Must(watch.ParseSelector(ref))(l.T)}))(l.T)
}

func (l *library) push(repo string, edit gitserver.Edit) string {
	l.Helper()
	return testenv.Must(l.git.Commit(l.Context(), repo, gitserver.Main, edit))(l.T)
}

// sync publishes a ref, and records it as given to apps.
func (l *library) sync(repo, ref string, apps ...string) (commit string) {
	l.Helper()
	l.fence++
	path, of := testenv.Must(events.ParseRepoPath(repo))(l.T), events.Ref{}
	if ref != "" {
		of = testenv.Must(events.ParseRef(ref))(l.T)
	}
	synced := testenv.Must(l.vol.Sync(l.Context(), volume.SyncRequest{
		Repo: path, URL: l.git.URL(repo), Ref: of, Fence: l.fence, Depth: l.depth, Base: func(events.Ref, volume.Publication) volume.Base { return volume.Base{} },
		Confirm: func(context.Context) error { return nil },
	}))(l.T)
	known := testenv.Must(state.NewStore(l.client, events.DefaultNamespace).LoadReadable(l.Context(), path))(l.T)
	for _, app := range append(apps, "") {
		result := events.Result{Repo: path, Ref: synced.Ref, App: app, After: synced.After, Fence: l.fence}
		fields := known.SyncedFields(result, l.git.URL(repo))
		testenv.Must(0, l.client.HSet(l.Context(), events.DefaultNamespace.Repo(path), fields).Err())(l.T)
	}
	return synced.After
}

// get requests a path below /api/v1/repos/ and returns the response and its body.
func (l *library) get(token, path string, header ...string) (*http.Response, string) {
	l.Helper()
	return l.request(token, l.url+path, header...)
}

func (l *library) request(token, url string, header ...string) (*http.Response, string) {
	l.Helper()
	r := testenv.Must(http.NewRequestWithContext(l.Context(), http.MethodGet, url, nil))(l.T)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp := testenv.Must(http.DefaultClient.Do(r))(l.T)
	defer resp.Body.Close()
	body := testenv.Must(io.ReadAll(resp.Body))(l.T)
	return resp, string(body)
}

// routes are requests for something of a repository.
var readingRoutes = []string{
	"refs", "archive", "archive?format=tar.gz", "archive?ref=main", "archive?commit=COMMIT", "archive?paths=README", "archive?paths=none", "files/README", "files/none",
	"tree", "tree?path=README", "tree?commit=COMMIT", "artifact", "artifact?ref=main",
}

// TestWhatIsNotWatchedDoesNotExist sends the token of an app that does not watch a repository to each route, and compares the answers
// with those for a repository that does not exist.
func TestWhatIsNotWatchedDoesNotExist(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	secret := l.sync("acme/secret", "", "scan")
	for _, route := range readingRoutes {
		route = strings.ReplaceAll(route, "COMMIT", secret)
		_, missing := l.get(l.docs, "acme/nothing/"+route)
		for _, repo := range []string{"acme/secret/", "acme%2Fsecret/", "ACME/Secret/", "acme/widgets/secret/"} {
			resp, body := l.get(l.docs, repo+route)
			if resp.StatusCode != http.StatusNotFound || body != missing || resp.Header.Get("ETag")+resp.Header.Get("Lockstep-Commit") != "" {
				t.Errorf("%s%s: %s %q, want 404 as for a repository that does not exist: %q", repo, route, resp.Status, body, missing)
			}
		}
		if resp, body := l.get(l.scan, "acme/secret/"+route); resp.StatusCode != http.StatusOK && !strings.Contains(route, "none") {
			t.Errorf("%s: the app that watches it gets %s %s", route, resp.Status, body)
		}
	}
	for _, path := range []string{"repos/acme/secret", "repos/acme/nothing", "repos/ACME%2Fsecret", "repos/acme", "locks", "locks/acme/secret", "dead", "watches", "hosts", "streams", "changes/1-0"} {
		if resp, body := l.request(l.docs, strings.TrimSuffix(l.url, "repos/")+path); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s; a reader has no endpoints that name all repositories", path, resp.Status, body)
		}
	}
	// A commit of the other repository is none of this one, and a ref that is not watched is not there.
	testenv.Must(0, l.git.SetRef(t.Context(), "acme/widgets", "refs/heads/dev", l.git.Head("acme/widgets", "refs/heads/main")))(t)
	l.sync("acme/widgets", "dev", "other")
	for _, query := range []string{"commit=" + secret, "ref=dev", "ref=refs/tags/v1"} {
		if resp, body := l.get(l.docs, "acme/widgets/archive?"+query); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
}

func TestReadersAreAuthenticated(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	for _, route := range readingRoutes {
		if strings.Contains(route, "none") || strings.Contains(route, "COMMIT") {
			continue
		}
		for token, want := range map[string]int{"": 401, "wrong": 401, l.docs + "x": 401, "operator": 200, l.docs: 200} {
			resp, body := l.get(token, "acme/widgets/"+route)
			if resp.StatusCode != want || want == 401 && !slices.Contains(resp.Header.Values("WWW-Authenticate"), `Basic realm="lockstep"`) {
				t.Errorf("%s with %q: %s %.100s, want %d", route, token, resp.Status, body, want)
			}
		}
		if resp, _ := l.get("", "acme/widgets/"+route, "Authorization", "Basic "+basic("git", l.docs)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s with HTTP Basic: %s", route, resp.Status)
		}
		if resp, body := l.get(l.docs, "acme/widgets/"+route, "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Proto", "http"); resp.StatusCode != http.StatusForbidden ||
			!strings.Contains(body, "TLS") {
			t.Errorf("%s in clear text: %s %s", route, resp.Status, body)
		}
	}
	testenv.Must(l.cfg.Reading.Tokens.Remove(t.Context(), testenv.Must(l.cfg.Reading.Tokens.List(t.Context()))(t)[0].ID))(t)
	if resp, _ := l.get(l.docs, "acme/widgets/refs"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a removed token: %s", resp.Status)
	}
}

func basic(user, password string) string {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")
}

// TestTokensNeedTLSOrThisMachine covers listeners behind proxies that end TLS.
func TestTokensNeedTLSOrThisMachine(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	proxy := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for name, tc := range map[string]struct {
		loopback bool
		proxies  []netip.Prefix
		peer     string
		header   []string
		want     int
	}{
		"this machine":                           {loopback: true, peer: "127.0.0.1:1", want: 200},
		"a proxy on it that ends TLS":            {loopback: true, peer: "127.0.0.1:1", header: []string{"X-Forwarded-Proto", "https", "X-Forwarded-For", "192.0.2.1"}, want: 200},
		"a proxy on it without TLS":              {loopback: true, peer: "127.0.0.1:1", header: []string{"X-Forwarded-Proto", "http"}, want: 403},
		"a proxy on it that does not say":        {loopback: true, peer: "127.0.0.1:1", header: []string{"X-Forwarded-For", "192.0.2.1"}, want: 403},
		"the network":                            {peer: "192.0.2.1:1", want: 403},
		"this machine, to a public listener":     {peer: "127.0.0.1:1", want: 403},
		"the network, pretending":                {peer: "192.0.2.1:1", header: []string{"X-Forwarded-Proto", "https"}, want: 403},
		"a trusted proxy":                        {proxies: proxy, peer: "10.1.2.3:1", header: []string{"X-Forwarded-Proto", "https"}, want: 200},
		"a trusted proxy without TLS":            {proxies: proxy, peer: "10.1.2.3:1", header: []string{"X-Forwarded-Proto", "http"}, want: 403},
		"a trusted proxy that does not say":      {proxies: proxy, peer: "10.1.2.3:1", want: 403},
		"another address than that of the proxy": {proxies: proxy, peer: "192.0.2.1:1", header: []string{"X-Forwarded-Proto", "https"}, want: 403},
	} {
		cfg := l.cfg
		cfg.Loopback, cfg.Proxies = tc.loopback, tc.proxies
		handler := documented(t, cfg)
		for token, want := range map[string]int{l.docs: tc.want, "operator": 200} {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/repos/acme/widgets/refs", nil)
			r.RemoteAddr = tc.peer
			r.Header.Set("Authorization", "Bearer "+token)
			for i := 0; i+1 < len(tc.header); i += 2 {
				r.Header.Set(tc.header[i], tc.header[i+1])
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, want)
			}
		}
	}
}

// TestOnlyLocalRequestsNeedNoToken sends requests without a token to readers without an API token, while no app has a token, and then while one has:
// the response asks for it, since clients such as Git send it only then.
func TestOnlyLocalRequestsNeedNoToken(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	commit := l.sync("acme/secret", "")
	cases := map[string]struct {
		proxy  string
		header []string
		want   int
	}{
		"this machine": {want: 200},
		"a proxy on it that says that it ended TLS": {header: []string{"X-Forwarded-Proto", "https"}, want: 401},
		"a proxy on it without TLS":                 {header: []string{"X-Forwarded-Proto", "http"}, want: 401},
		"a trusted proxy without headers":           {proxy: "127.0.0.0/8", want: 401},
		"a scheme that is not known":                {header: []string{"Authorization", "token " + l.docs}, want: 401},
		"an empty password":                         {header: []string{"Authorization", "Basic " + basic("git", "")}, want: 401},
	}
	try := func(when string, status func(want int) int) {
		for name, tc := range cases {
			cfg := l.cfg
			cfg.Token = fixed("")
			if tc.proxy != "" {
				cfg.Proxies = []netip.Prefix{netip.MustParsePrefix(tc.proxy)}
			}
			for _, path := range []string{"refs", "archive", "files/README", "tree", "artifact", "git"} {
				path = "/api/v1/repos/acme/secret/" + path
				if strings.HasSuffix(path, "git") {
					path = "/git/acme/secret.git/info/refs?service=git-upload-pack"
				}
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.RemoteAddr, r.Host = "127.0.0.1:1", "127.0.0.1:8080"
				for i := 0; i+1 < len(tc.header); i += 2 {
					r.Header.Set(tc.header[i], tc.header[i+1])
				}
				w := httptest.NewRecorder()
				server.Handler(cfg).ServeHTTP(w, r)
				if w.Code != status(tc.want) || w.Code == 401 && !strings.Contains(fmt.Sprint(w.Header().Values("WWW-Authenticate")), "Basic") {
					t.Errorf("%s, %s, %s: %d %s, want %d", when, name, path, w.Code, w.Body, status(tc.want))
				}
			}
		}
	}
	try("apps have tokens", func(int) int { return 401 })

	cfg := l.cfg
	cfg.Token = fixed("")
	srv := httptest.NewServer(documented(t, cfg))
	t.Cleanup(srv.Close)
	url := strings.Replace(srv.URL, "://", "://any:"+l.docs+"@", 1) + "/git/acme/secret.git"
	if out, err := gitserver.Git(t.Context(), "/", "", "ls-remote", url); err == nil {
		t.Errorf("git lists what is not watched by the app of its token: %s", out)
	}
	testenv.Must(0, l.client.Del(t.Context(), events.DefaultNamespace.Tokens()).Err())(t)
	try("no app has a token", func(want int) int { return want })
	if out := testenv.Must(gitserver.Git(t.Context(), "/", "", "ls-remote", srv.URL+"/git/acme/secret.git"))(t); !strings.Contains(out, commit) {
		t.Errorf("git without a token lists %s", out)
	}
}

func TestArchiveIsDownloaded(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"docs/a.md": "# a"}, Link: map[string]string{"link": "docs/a.md"}})
	commit := l.sync("acme/widgets", "", "docs")
	resp, packed := l.get(l.docs, "acme/widgets/archive")
	h := resp.Header
	if resp.StatusCode != 200 || h.Get("Lockstep-Ref") != "refs/heads/main" || h.Get("Lockstep-Commit") != commit || h.Get("Content-Type") != "application/zstd" ||
		h.Get("Content-Disposition") != `attachment; filename="widgets-`+commit[:12]+`.tar.zst"` || h.Get("Cache-Control") != "private, no-cache" || h.Get("Vary") != "Authorization" {
		t.Fatalf("%s %v", resp.Status, h)
	}
	plain := testenv.Must(testenv.Must(zstd.NewReader(nil))(t).DecodeAll([]byte(packed), nil))(t)
	for _, want := range []string{"README", "acme/widgets\n", "docs/a.md", "# a", "link"} {
		if !bytes.Contains(plain, []byte(want)) {
			t.Errorf("the archive lacks %q", want)
		}
	}
	for _, query := range []string{"", "?ref=main", "?ref=refs/heads/main", "?ref=HEAD", "?ref=" + commit, "?commit=" + commit, "?format=tar.zst"} {
		if again, body := l.get(l.docs, "acme%2Fwidgets/archive"+query); body != packed || again.Header.Get("ETag") != h.Get("ETag") {
			t.Errorf("%s: %s, other bytes", query, again.Status)
		}
		for _, header := range []string{h.Get("ETag"), `"x", ` + h.Get("ETag"), "W/" + h.Get("ETag"), "*"} {
			if again, body := l.get(l.docs, "acme/widgets/archive"+query, "If-None-Match", header); again.StatusCode != http.StatusNotModified || body != "" {
				t.Errorf("%s, If-None-Match %s: %s", query, header, again.Status)
			}
		}
	}
	for query, want := range map[string]int{
		"?format=zip": 400, "?ref=..": 400, "?commit=abc": 400, "?commit=" + strings.Repeat("A", 40): 400, "?commit=" + commit + "&ref=main": 400, "?paths=../x": 400, "?paths=": 400, "?paths=none": 404,
		"?paths=docs,link": 200, "?paths=docs&paths=link": 200, "?paths={docs,link}": 200, "?paths=**/*.md": 200,
	} {
		if resp, body := l.get(l.docs, "acme/widgets/archive"+strings.NewReplacer("{", "%7B", "}", "%7D").Replace(query)); resp.StatusCode != want {
			t.Errorf("%s: %s %.200s, want %d", query, resp.Status, body, want)
		}
	}
	if head := testenv.Must(http.DefaultClient.Do(headRequest(l, "acme/widgets/archive")))(t); head.StatusCode != 200 || head.Header.Get("ETag") != h.Get("ETag") {
		t.Errorf("HEAD: %s %v", head.Status, head.Header)
	}
	var artifact server.Artifact
	resp, body := l.get(l.docs, "acme/widgets/artifact?format=tar.zst")
	if err := json.Unmarshal([]byte(body), &artifact); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s %s", resp.Status, body)
	}
	if artifact.Digest != fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(packed))) || artifact.Size != int64(len(packed)) || artifact.Revision != "main@sha1:"+commit {
		t.Errorf("%+v", artifact)
	}
	u := testenv.Must(url.Parse(artifact.URL))(t)
	if _, body := l.get(l.docs, strings.TrimPrefix(artifact.URL, l.url)); body != packed || u.Scheme != "http" {
		t.Errorf("%s is not the archive", artifact.URL)
	}
	resp, body = l.get(l.docs, "acme/widgets/artifact")
	if err := json.Unmarshal([]byte(body), &artifact); err != nil || !strings.HasSuffix(artifact.URL, "format=tar.gz") {
		t.Fatalf("%s %s", resp.Status, body)
	}
	if _, body := l.get(l.docs, strings.TrimPrefix(artifact.URL, l.url)); fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(body))) != artifact.Digest || int64(len(body)) != artifact.Size {
		t.Errorf("%s is not the archive", artifact.URL)
	}
	for _, query := range []string{"?format=zip", "?ref=..", "?commit=1"} {
		if resp, body := l.get(l.docs, "acme/widgets/artifact"+query); resp.StatusCode != 400 {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
	if resp, _ := l.get(l.docs, "acme/widgets/artifact?ref=dev"); resp.StatusCode != 404 {
		t.Errorf("another ref: %s", resp.Status)
	}
}

func headRequest(l *library, path string) *http.Request {
	r := testenv.Must(http.NewRequestWithContext(l.Context(), http.MethodHead, l.url+path, nil))(l.T)
	r.Header.Set("Authorization", "Bearer "+l.docs)
	return r
}

func TestFileIsDownloaded(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	page := "<script>alert(1)</script>"
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"docs/a b?.html": page, "files/archive": "x"}, Link: map[string]string{"link": "README"}, Exec: map[string]string{"run": "x"}})
	commit := l.sync("acme/widgets", "", "docs")
	blob := strings.TrimSpace(testenv.Must(l.git.Git(t.Context(), "acme/widgets", "", "rev-parse", commit+":docs/a b?.html"))(t))
	resp, body := l.get(l.docs, "acme/widgets/files/docs/a%20b%3F.html")
	h := resp.Header
	if body != page || h.Get("ETag") != `"`+blob+`"` || h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Content-Disposition") != "attachment" || h.Get("Lockstep-Mode") != "100644" || h.Get("Lockstep-Commit") != commit || h.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%s %q %v", resp.Status, body, h)
	}
	if resp, body := l.get(l.docs, "acme/widgets/files/docs/a%20b%3F.html", "Range", "bytes=8-", "If-Range", h.Get("ETag")); resp.StatusCode != http.StatusPartialContent || body != page[8:] {
		t.Errorf("a range: %s %q", resp.Status, body)
	}
	if resp, body := l.get(l.docs, "acme/widgets/files/docs/a%20b%3F.html", "Range", "bytes=0-1,8-9"); resp.StatusCode != http.StatusPartialContent || strings.Count(body, "Content-Range") != 2 {
		t.Errorf("two ranges: %s %q", resp.Status, body)
	}
	if resp, body := l.get(l.docs, "acme/widgets/files/docs/a%20b%3F.html", "Range", "bytes=8-", "If-Range", `"other"`); resp.StatusCode != http.StatusOK || body != page {
		t.Errorf("a range of another file: %s %q", resp.Status, body)
	}
	if resp, _ := l.get(l.docs, "acme/widgets/files/README", "Range", "bytes=1000-"); resp.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("beyond the end: %s", resp.Status)
	}
	if resp, body := l.get(l.docs, "acme/widgets/files/docs/a%20b%3F.html", "If-None-Match", h.Get("ETag")); resp.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("not modified: %s", resp.Status)
	}
	for path, want := range map[string]string{
		"link": "200 README", "run": "200 x", "files/archive": "200 x", "README?ref=main": "200 acme/widgets\n", "docs": "404 is a folder; list it", "none": "404 has no file",
		".git/config": "404 has no file", "README/": "404 has no file", "..%2f..%2fREADME": "404 has no file", "%00": "404 has no file", "README?ref=..": "400 ref",
		"README?commit=x": "400 commit", "README?ref=dev": "404 not watched",
	} {
		resp, body := l.get(l.docs, "acme/widgets/files/"+path)
		status, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(resp.StatusCode) != status || !strings.Contains(body, text) {
			t.Errorf("%s: %s %q, want %s", path, resp.Status, body, want)
		}
	}
}

func TestFilesAreListedByPage(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	write := map[string]string{"latin1-\xe9": "é"}
	for i := range 20 {
		write[fmt.Sprintf("docs/%02d", i)] = strings.Repeat("x", i)
	}
	l.push("acme/widgets", gitserver.Edit{Write: write, Submodule: map[string]string{"sub": strings.Repeat("1", 40)}})
	commit := l.sync("acme/widgets", "", "docs")
	var all []server.TreeEntry
	for next := ""; ; {
		var page struct {
			Commit, Next string
			Files        []server.TreeEntry
		}
		resp, body := l.get(l.docs, "acme/widgets/tree?limit=7&commit="+commit+"&after="+next)
		if err := json.Unmarshal([]byte(body), &page); err != nil || resp.StatusCode != 200 || page.Commit != commit || len(page.Files) > 7 {
			t.Fatalf("%s %s", resp.Status, body)
		}
		all = append(all, page.Files...)
		if next = page.Next; next == "" {
			break
		}
	}
	listed := testenv.Must(l.git.Git(t.Context(), "acme/widgets", "", "ls-tree", "-r", "-z", commit))(t)
	if n := strings.Count(listed, "\x00"); len(all) != n || n != 23 {
		t.Errorf("%d files, git has %d", len(all), n)
	}
	for _, f := range all {
		path := f.Path
		if f.Raw != "" {
			path = "latin1-\xe9"
		}
		if !strings.Contains(listed, f.Mode+" ") || !strings.Contains(listed, f.Blob+"\t"+path+"\x00") || strings.HasPrefix(path, "docs/") && fmt.Sprintf("docs/%02d", f.Size) != path {
			t.Errorf("%+v is not as git lists it", f)
		}
	}
	for query, want := range map[string]int{"?path=docs": 200, "?path=../x": 400, "?limit=0": 400, "?limit=1001": 400, "?after=!": 400, "?ref=..": 400, "?ref=dev": 404} {
		if resp, body := l.get(l.docs, "acme/widgets/tree"+query); resp.StatusCode != want {
			t.Errorf("%s: %s %s, want %d", query, resp.Status, body, want)
		}
	}
	resp, body := l.get(l.docs, "acme/widgets/refs")
	if want := `{"repo":"acme/widgets","refs":[{"ref":"refs/heads/main","commit":"` + commit + `","default":true}]}`; strings.TrimSpace(body) != want {
		t.Errorf("%s %s, want %s", resp.Status, body, want)
	}
}

func TestUncleanPathIsRedirected(t *testing.T) {
	t.Parallel()
	handler := server.Handler(everything())
	for path, want := range map[string]string{"acme/widgets/files//a/%20": "acme/widgets/files/a/%20", "acme/widgets/x/../files/a": "acme/widgets/files/a"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/repos/"+path, nil))
		if got := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || !strings.HasPrefix(got, "/api/v1/repos/acme/widgets/files/a") {
			t.Errorf("%s: %d to %s, want %s", path, w.Code, got, want)
		}
	}
}

// TestRepositoryMayHaveTheNameOfARoute has a repository acme/widgets/archive, whose state was at this path before there were archives.
func TestRepositoryMayHaveTheNameOfARoute(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.cfg.Repos, l.cfg.Leases = reposOf(l.client), leasesOf(l.client)
	l.serve()
	for _, repo := range []string{"acme/archive", "group/sub/archive", "group/files/deep"} {
		testenv.Must(l.git.Create(t.Context(), repo, map[string]string{"README": repo + "\n"}))(t)
		l.sync(repo, "", "docs")
		if resp, body := l.get("", repo); resp.StatusCode != 200 || !strings.Contains(body, `"repo":"`+repo+`"`) {
			t.Errorf("the state of %s: %s %s", repo, resp.Status, body)
		}
		l.watch("docs", repo, "")
		for _, path := range []string{repo, strings.ReplaceAll(repo, "/", "%2F")} {
			if resp, body := l.get(l.docs, path+"/files/README"); body != repo+"\n" {
				t.Errorf("a file of %s: %s %s", path, resp.Status, body)
			}
			if resp, _ := l.get(l.docs, path+"/archive"); resp.StatusCode != 200 {
				t.Errorf("the archive of %s: %s", path, resp.Status)
			}
		}
	}
	if resp, _ := l.get("", "acme/widgets"); resp.StatusCode != 404 {
		t.Errorf("the state of a repository without: %s", resp.Status)
	}
}

// TestUnreadableTree covers trees that are gone or altered, and a volume that is not there.
func TestUnreadableTree(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	check := func(name string, routes []string, want int, text string) {
		t.Helper()
		for _, route := range routes {
			if resp, body := l.get(l.docs, "acme/widgets/"+route); resp.StatusCode != want || !strings.Contains(body, text) || want == 503 && resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s, %s: %s %s, want %d, %s", name, route, resp.Status, body, want, text)
			}
		}
	}
	files := []string{"archive", "files/README", "tree", "artifact"}
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"README": "2"}})
	l.sync("acme/widgets", "")
	check("another app is ahead", files, 200, "")
	trees := testenv.Must(filepath.Glob(filepath.Join(l.vol.Root(), ".lockstep/repos/acme/widgets/trees/101-*")))(t)
	testenv.Must(0, os.RemoveAll(trees[0]))(t)
	check("its tree is gone", files, 503, "next sync for this app is not settled yet; try again")
	l.sync("acme/widgets", "", "docs")
	check("settled", files, 200, "")
	published := filepath.Join(l.vol.Root(), "acme/widgets/README")
	testenv.Must(0, errors.Join(os.Remove(published), os.WriteFile(published, []byte("altered"), 0o644)))(t)
	check("altered", []string{"archive?paths=README", "files/README"}, 503, "altered")
	testenv.Must(0, os.Rename(l.vol.Root(), l.vol.Root()+"-away"))(t)
	check("no volume", append(files, "refs"), 503, "try again")
	l.cfg.Reading.Reader.Volume = func(context.Context) (*volume.Volume, error) {
		return nil, fmt.Errorf("open the volume: %w", &fs.PathError{Op: "open", Path: l.vol.Root(), Err: syscall.EMFILE})
	}
	check("too many open files", append(files, "refs"), 503, "the volume of this process cannot be read")
}

// TestCopiesWithoutState reads at a process whose Redis is empty, as that of a follower after a restart, or has lost its data: who follows it
// must not take that for removals.
func TestCopiesWithoutState(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "")
	testenv.Must(l.client.FlushAll(t.Context()).Result())(t)
	for _, copies := range []bool{false, true} {
		l.cfg.Reading.Reader.Copies = copies
		if resp, body := l.get("operator", "acme/widgets/refs"); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("copies %v: %s %s", copies, resp.Status, body)
		}
		if resp, body := l.get("operator", "acme/none/refs"); resp.StatusCode != http.StatusNotFound {
			t.Errorf("copies %v, not published: %s %s", copies, resp.Status, body)
		}
	}
}

// TestResponsesToAnAppAreLimited holds as many archives, or files, as one app may have.
func TestResponsesToAnAppAreLimited(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 16<<20) // more than the buffers of a connection
	_, _ = rand.Read(noise)       // never fails
	for name, tc := range map[string]struct {
		most    int
		held    string
		refused []string // then
		served  []string // to another app
	}{
		"archives": {4, "acme/widgets/archive", []string{"acme/widgets/archive", "acme/widgets/artifact"}, []string{"acme/widgets/archive"}},
		"files": {
			64, "acme/widgets/files/noise",
			[]string{"acme/widgets/files/README", "acme/widgets/tree", "acme/widgets/refs", "acme/secret/tree", "acme/none/tree"},
			[]string{"acme/widgets/files/README", "acme/widgets/tree"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLibrary(t)
			l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"noise": string(noise)}})
			l.sync("acme/widgets", "", "docs", "scan")
			l.watch("scan", "acme/widgets", "")
			var held []*http.Response
			for range tc.most {
				r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, l.url+tc.held, nil))(t)
				r.Header.Set("Authorization", "Bearer "+l.docs)
				held = append(held, testenv.Must(http.DefaultClient.Do(r))(t))
			}
			for _, path := range tc.refused {
				if resp, body := l.get(l.docs, path); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || resp.Header.Get("ETag") != "" {
					t.Errorf("%s: %s %s", path, resp.Status, body)
				}
			}
			for _, path := range tc.served {
				if resp, _ := l.get(l.scan, path); resp.StatusCode != http.StatusOK {
					t.Errorf("another app, %s: %s", path, resp.Status)
				}
			}
			for _, resp := range held {
				if n, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || n < 16<<20 || err != nil {
					t.Errorf("%s, %d bytes, %v", resp.Status, n, err)
				}
				resp.Body.Close()
			}
			if resp, _ := l.get(l.docs, tc.refused[0]); resp.StatusCode != http.StatusOK {
				t.Errorf("afterwards: %s", resp.Status)
			}
		})
	}
}

func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sent         int64
		waited, want time.Duration
	}{
		"at first":               {0, 0, time.Minute},
		"after 50 s of nothing":  {0, 50 * time.Second, 10 * time.Second},
		"fast":                   {1 << 30, time.Minute, time.Minute},
		"just fast enough":       {64 << 20, 1024 * time.Second, time.Minute},
		"slow for a while":       {64 << 20, 1054 * time.Second, 30 * time.Second},
		"slow":                   {64 << 20, 1084 * time.Second, 0},
		"more than 9 GB, slowly": {1 << 40, 400 * 24 * time.Hour, 1<<24*time.Second + time.Minute - 400*24*time.Hour},
	} {
		if got := server.Patience(tc.sent, tc.waited); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestEqualTreesHaveDigestsOfTheirOwn alters one of two equal trees: what another app reads must not depend on it.
func TestEqualTreesHaveDigestsOfTheirOwn(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	for _, repo := range []string{"acme/widgets", "acme/secret"} {
		l.push(repo, gitserver.Edit{Write: map[string]string{"README": "equal"}})
		l.sync(repo, "", "docs", "scan")
	}
	altered := filepath.Join(l.vol.Root(), "acme/secret/README")
	testenv.Must(0, errors.Join(os.Remove(altered), os.WriteFile(altered, []byte("other"), 0o644)))(t)
	var of [2]server.Artifact
	for i, repo := range []string{"acme/secret", "acme/widgets"} {
		resp, body := l.get([]string{l.scan, l.docs}[i], repo+"/artifact")
		if err := json.Unmarshal([]byte(body), &of[i]); err != nil {
			t.Fatalf("%s %s", resp.Status, body)
		}
	}
	_, packed := l.get(l.docs, "acme/widgets/archive?format=tar.gz")
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(packed))); of[1].Digest != want || of[0].Digest == want {
		t.Errorf("the digest is %s, that of the other app %s; want %s", of[1].Digest, of[0].Digest, want)
	}
}

// TestPathsOfOddNames selects files whose names have characters of globs and of lists.
func TestPathsOfOddNames(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	names := []string{"a,b", "c,d/e", "line\nbreak", `quo"te`, "latin1-\xe9", "star*", "[x]/y", "{z}", `back\slash`, ".gitignore", "archive/refs", "tree", "%2F", "a?b#c"}
	write := map[string]string{"starry": "", "x/y": "", "z": ""}
	for _, name := range names {
		write[name] = name
	}
	l.push("acme/widgets", gitserver.Edit{Write: write})
	l.sync("acme/widgets", "", "docs")
	escape := strings.NewReplacer(",", `\,`, "*", `\*`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`, "?", `\?`, `\`, `\\`)
	for _, name := range names {
		resp, packed := l.get(l.docs, "acme/widgets/archive?format=tar.gz&paths=none,"+url.QueryEscape(escape.Replace(name)))
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%q: %s %s", name, resp.Status, packed)
			continue
		}
		in := tar.NewReader(testenv.Must(gzip.NewReader(strings.NewReader(packed)))(t))
		header := testenv.Must(in.Next())(t)
		if _, err := in.Next(); header.Name != name || !errors.Is(err, io.EOF) {
			t.Errorf("%q: the archive has %q, %v", name, header.Name, err)
		}
		if resp, body := l.get(l.docs, "acme/widgets/files/"+strings.ReplaceAll(url.PathEscape(name), "%2F", "/")); body != name && name != "%2F" {
			t.Errorf("%q: %s %q", name, resp.Status, body)
		}
	}
	if resp, body := l.get(l.docs, "acme/widgets/files/%252F"); body != "%2F" {
		t.Errorf("%s %q", resp.Status, body)
	}
}
