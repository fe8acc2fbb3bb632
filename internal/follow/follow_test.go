package follow

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
)

func newReader(t *testing.T, handle http.HandlerFunc) *Reader {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("lockstep_token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(server.URL+"/", file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReaderURLs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("lockstep_token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"https://lockstep.example.org/":    "",
		"https://example.org/lockstep":     "",
		"http://127.0.0.1:8080":            "",
		"http://[::1]:8080":                "",
		"http://localhost":                 "",
		"http://lockstep.example.org":      "unencrypted",
		"http://127.0.0.1.example.org":     "unencrypted",
		"https://me:secret@example.org":    "carries a user name",
		"https://example.org/?x":           "query",
		"lockstep.example.org":             "want the URL",
		"ssh://git@example.org/acme":       "want the URL",
		"me:secret@lockstep.example.org/x": "want the URL",
	} {
		r, err := NewReader(url, file)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has the password: %v", url, err)
		}
		if err == nil && strings.HasSuffix(r.URL(), "/") {
			t.Errorf("%s became %s", url, r.URL())
		}
	}
	for name, text := range map[string]string{"empty": "\n", "two lines": "a\nb", "long": strings.Repeat("x", maxToken+1), "binary": "a\x00b"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewReader("https://example.org", file); err == nil {
			t.Errorf("a token file that is %s is accepted", name)
		}
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	r := newReader(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprintf(w, ": comment\nretry: 1\n\nid: %s\n\nid: 2\r\nevent: synced\r\ndata: {\"a\":\ndata:1}\n\n\n\nid: 3\n\ndata: x\n\nevent: gone\ndata: {\"cursor\":\"9\"}\n\n", r.Header.Get("Last-Event-ID"))
	})
	s, err := r.Results(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []Frame{{"1", nil}, {"2", []byte("{\"a\":\n1}")}, {"3", nil}, {"3", []byte("x")}} {
		if got, err := s.Next(); err != nil || got.Cursor != want.Cursor || string(got.Data) != string(want.Data) || (got.Data == nil) != (want.Data == nil) {
			t.Errorf("%q %q, %v; want %q %q", got.Cursor, got.Data, err, want.Cursor, want.Data)
		}
	}
	if _, err := s.Next(); !isGone(err, "9") {
		t.Errorf("after the event gone: %v", err)
	}
}

func isGone(err error, cursor string) bool {
	gone, ok := errors.AsType[*GoneError](err)
	return ok && gone.Cursor == cursor
}

func TestSilentStreamIsLost(t *testing.T) {
	t.Parallel()
	r := newReader(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") == "" {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "id: 1\n\nid: 2")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
	proctest.WithLongerTimeouts(t, 50*time.Millisecond, func(pause time.Duration) error {
		s, err := r.results(t.Context(), "", pause)
		if err != nil {
			return err
		}
		defer s.Close()
		if got, err := s.Next(); err != nil || got.Cursor != "1" {
			return fmt.Errorf("%+v, %w", got, err)
		}
		if _, err := s.Next(); !errors.Is(err, errSilent) {
			t.Errorf("a stream that stops within a frame: %v", err)
		}
		return nil
	})
	if _, err := r.results(t.Context(), "1", 50*time.Millisecond); !errors.Is(err, errSilent) {
		t.Errorf("a reader that never answers: %v", err)
	}
}

func TestResponses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status       int
		header, body string
		is           error
		text         string
	}{
		"refused":                   {status: 401, header: `Bearer realm="lockstep"`, body: `{"error":"unknown"}`, is: ErrRefused},
		"refused by a proxy":        {status: 401, header: `Basic realm="corp"`, body: "no", text: "HTTP 401"},
		"not watched":               {status: 404, body: `{"error":"not found"}`, is: ErrNotFound},
		"another server":            {status: 404, body: "<html>", text: "not the URL of a reader"},
		"redirect":                  {status: 302, text: "redirects"},
		"unencrypted":               {status: 403, body: `{"error":"use https"}`, text: "use https"},
		"success of another server": {status: 200, body: "<html>", text: "not that of a reader"},
		"cut off":                   {status: 200, body: `{"refs":[{"ref":`, text: "not that of a reader"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReader(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Authorization"); got != "Bearer lockstep_token" || r.URL.EscapedPath() != "/api/v1/repos/acme%2Fwidgets/refs" {
					t.Errorf("%s %s", got, r.URL.EscapedPath())
				}
				w.Header().Set("WWW-Authenticate", tc.header)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.body)
			})
			repo, err := events.ParseRepoPath("acme/widgets")
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Refs(t.Context(), repo)
			if tc.is != nil && !errors.Is(err, tc.is) || tc.is == nil && (err == nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), tc.text)) {
				t.Errorf("%v, want %v %s", err, tc.is, tc.text)
			}
		})
	}
}

func TestPositionPassesOnlyWhatIsPublished(t *testing.T) {
	t.Parallel()
	p := position{open: map[string]span{}}
	at := func(want string) {
		t.Helper()
		if p.advance(); p.cursor != want {
			t.Errorf("at %q, want %q", p.cursor, want)
		}
	}
	p.frame("c1")
	at("c1")
	p.frame("c2")
	p.ask("a")
	at("c1")
	p.frame("c3")
	p.ask("b")
	p.frame("c4")
	p.ask("a")
	p.settled("b", 3)
	at("c1")
	p.settled("a", 2) // the first of two: the second may be anywhere after it
	at("c2")
	p.settled("a", 1) // late
	at("c2")
	p.settled("a", 4)
	at("c4")
	p.frame("c5")
	p.ask("stuck")
	for n := range 10 * maxMarks {
		p.frame(fmt.Sprint("d", n))
	}
	at("c4")
	if len(p.marks) > maxMarks {
		t.Errorf("%d marks are kept", len(p.marks))
	}
	delete(p.open, "stuck")
	at(fmt.Sprint("d", 10*maxMarks-1))
}

func TestGlobs(t *testing.T) {
	t.Parallel()
	repos := []string{"acme/widgets", "Acme/Gadgets", "group/sub/tools", "other/x"}
	for glob, want := range map[string][]string{
		"acme/*": {"acme/widgets", "Acme/Gadgets"}, "**": repos, "*/*": {"acme/widgets", "Acme/Gadgets", "other/x"}, "group/**": {"group/sub/tools"},
		"ACME/w*": {"acme/widgets"}, "other/[xy]": {"other/x"}, "nothing/*": nil,
	} {
		f := &Follower{cfg: Config{Select: []string{glob}}}
		var got []string
		for _, name := range repos {
			if repo, err := events.ParseRepoPath(name); err == nil && f.selects(repo) {
				got = append(got, name)
			}
		}
		if err := CheckGlob(glob); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s selects %v, %v", glob, got, err)
		}
	}
	for _, glob := range []string{"", "acme", "*", "acme/", "/acme/x", "acme/[", `acme/\`} {
		if CheckGlob(glob) == nil {
			t.Errorf("%q is accepted", glob)
		}
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, ".lockstep"), 0o755); err != nil {
		t.Fatal(err)
	}
	empty := true
	open := func(url string, depth events.Depth) (*Record, error) {
		return OpenRecord(root, url, depth, func() (bool, error) { return empty, nil })
	}
	empty = false
	if _, err := open("https://a", 1); err == nil || !strings.Contains(err.Error(), "not copies of a reader") {
		t.Errorf("a root with other repositories: %v", err)
	}
	empty = true
	r, err := open("https://a", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open("https://a", 1); err == nil || !strings.Contains(err.Error(), "another lockstep follow") {
		t.Errorf("opened twice: %v", err)
	}
	if err := r.SetCursor("c1"); err != nil {
		t.Fatal(err)
	}
	r.Close()
	empty = false
	if _, err := open("https://b", 1); err == nil || !strings.Contains(err.Error(), "follows https://a") {
		t.Errorf("another reader: %v", err)
	}
	for _, tc := range []struct {
		depth    events.Depth
		cursor   string
		deepened bool
	}{{1, "c1", false}, {5, "", true}, {5, "", true}, {1, "c1", false}} {
		r, err := open("https://a", tc.depth)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cursor() != tc.cursor || r.Deepened() != tc.deepened {
			t.Errorf("depth %d: %q, %v", tc.depth, r.Cursor(), r.Deepened())
		}
		r.Close()
	}
}
