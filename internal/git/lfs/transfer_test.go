package lfs

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

const (
	repoPath   = "/acme/widgets.git"
	serverPath = repoPath + "/info/lfs"
)

// server is an LFS server with one object.
type server struct {
	*httptest.Server
	content string
	want    Object
	action  map[string]any                               // fields of the object and its action; HOST in the href is the server's URL
	batch   func(w http.ResponseWriter, response []byte) // optional
	get     http.HandlerFunc                             // of downloads
	urls    []string                                     // to which the credential may be sent, without the host

	mu       sync.Mutex
	requests []string // "GET {path} {Authorization} {Range}"
}

func newServer(t *testing.T, content string) *server {
	pointer, _ := gitserver.LFSPointer(content)
	p, ok := ParsePointer([]byte(pointer))
	if !ok {
		t.Fatal("no pointer")
	}
	s := &server{content: content, want: Object{p, "a.bin"}, urls: []string{""}}
	s.get = func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	line := []string{r.Method, r.URL.String(), r.Header.Get("Authorization"), r.Header.Get("Range")}
	s.requests = append(s.requests, strings.Join(slices.DeleteFunc(line, func(f string) bool { return f == "" }), " "))
	s.mu.Unlock()
	if r.URL.Path != serverPath+"/objects/batch" {
		s.get(w, r)
		return
	}
	action := fmt.Sprintf(`"authenticated":%v,"actions":{"download":{"href":%q,"header":{%s}}}`,
		s.action["authenticated"] != nil, strings.Replace(fmt.Sprint(s.action["href"]), "HOST", s.URL, 1), s.header())
	response := fmt.Appendf(nil, `{"objects":[{"oid":%q,"size":%d,%s}]}`, s.want.OID, s.want.Size, action)
	if s.batch != nil {
		s.batch(w, response)
		return
	}
	_, _ = w.Write(response)
}

func (s *server) header() string {
	if text, ok := s.action["header"].(string); ok {
		return text
	}
	return ""
}

// mayReceive reports whether the credential covers a URL.
func (s *server) mayReceive(url string) bool {
	return slices.ContainsFunc(s.urls, func(prefix string) bool { return strings.HasPrefix(url, s.URL+prefix) })
}

// download fetches the object, and returns its content.
func (s *server) download(t *testing.T) (string, error) {
	t.Helper()
	if s.action == nil {
		s.action = map[string]any{"href": "HOST" + serverPath + "/objects/" + s.want.OID.String()}
	}
	network := testenv.Must(wire.NewNetwork(wire.Config{Hosts: []string{"127.0.0.1"}}))(t)
	t.Cleanup(network.Close)
	sender := &wire.Sender{
		Network: network, Remote: s.URL + repoPath, Limits: wire.Limits{Timeout: 30 * time.Second},
		Auth: func(_ context.Context, url string) (wire.Auth, error) {
			if !s.mayReceive(url) {
				return wire.Auth{}, nil
			}
			return wire.Auth{BearerToken: "t0ken"}, nil
		},
	}
	client := &Client{Server: s.URL + serverPath, Sender: sender, Store: &Store{Dir: t.TempDir(), Fence: 1}}
	stored, err := client.Download(t.Context(), []Object{s.want})
	if err != nil {
		return "", err
	}
	return string(testenv.Must(os.ReadFile(stored[0]))(t)), nil
}

// downloads are the requests without those of the batch API, from which the common parts are cut.
func (s *server) downloads() (lines []string) {
	for _, line := range s.requests {
		if line = strings.TrimPrefix(line, "GET "); !strings.HasPrefix(line, "POST ") {
			lines = append(lines, strings.ReplaceAll(line, s.want.OID.String(), "OID"))
		}
	}
	return lines
}

func zipped(content string) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, content)
	_ = w.Close()
	return out.Bytes()
}

func sendZipped(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = w.Write(body)
}

// TestCompressedResponses has a server that compresses responses although it is asked not to.
func TestCompressedResponses(t *testing.T) {
	content := strings.Repeat("0123456789", 20_000)
	broken := func(body []byte) func(s *server) {
		return func(s *server) {
			s.get = func(w http.ResponseWriter, r *http.Request) {
				if len(s.downloads()) > 1 {
					http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(body)+1))
				sendZipped(w, body)
			}
		}
	}
	always := func(encoding string, body []byte) func(s *server) {
		return func(s *server) {
			s.get = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", encoding)
				_, _ = w.Write(body)
			}
		}
	}
	for name, tc := range map[string]struct {
		do    func(s *server)
		class events.Class // "" for a success
		gets  int
	}{
		"an object":           {do: always("gzip", zipped(content)), gets: 1},
		"in upper case":       {do: always("GZIP", zipped(content)), gets: 1},
		"in two members":      {do: always("gzip", append(zipped(content[:1000]), zipped(content[1000:])...)), gets: 1},
		"an uncompressed one": {do: always("identity", []byte(content)), gets: 1},
		"the batch response": {do: func(s *server) {
			s.batch = func(w http.ResponseWriter, response []byte) { sendZipped(w, zipped(string(response))) }
		}, gets: 1},
		// The rest is requested without compression.
		"an object that breaks off": {do: broken(zipped(content)[:200]), gets: 2},
		"a range of a compressed object": {do: func(s *server) {
			s.get = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				body := zipped(content)
				switch from, ranged := strings.CutPrefix(r.Header.Get("Range"), "bytes="); {
				case ranged:
					w.Header().Set("Content-Range", "bytes "+from+"99999/200000")
					w.WriteHeader(http.StatusPartialContent)
				case len(s.downloads()) == 1:
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
					body = body[:200]
				}
				_, _ = w.Write(body)
			}
		}, gets: 3},
		"a longer object":  {do: always("gzip", zipped(content+"x")), class: events.ClassServer, gets: 3},
		"a shorter object": {do: always("gzip", zipped(content[1:])), class: events.ClassServer, gets: 3},
		"another object":   {do: always("gzip", zipped("x"+content[1:])), class: events.ClassServer, gets: 3},
		"no compression":   {do: always("gzip", []byte(content)), class: events.ClassNetwork, gets: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, content)
			tc.do(s)
			got, err := s.download(t)
			if tc.class != "" {
				testenv.MustFail(t, err, tc.class, events.Retryable)
			} else if err != nil || got != content {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if len(s.downloads()) != tc.gets {
				t.Errorf("requests %q, want %d", s.downloads(), tc.gets)
			}
		})
	}
}

// TestCompressedResponsesAreBounded has a server that sends bombs: endless spaces, and endless members without content.
func TestCompressedResponsesAreBounded(t *testing.T) {
	var spaces bytes.Buffer
	w := gzip.NewWriter(&spaces)
	_, _ = w.Write(bytes.Repeat([]byte(" "), 8<<20))
	_ = w.Flush()
	nothing := []byte{0, 0, 0, 0xff, 0xff} // an empty block
	for name, tc := range map[string]struct {
		batch       bool
		start, more []byte
		class       events.Class
		kind        events.Disposition
	}{
		"a large object":        {false, spaces.Bytes(), nothing, events.ClassServer, events.Retryable},
		"empty blocks":          {false, spaces.Bytes()[:10], nothing, events.ClassNetwork, events.Retryable},
		"empty members":         {false, nil, zipped(""), events.ClassNetwork, events.Retryable},
		"a large batch":         {true, spaces.Bytes(), nothing, events.ClassQuota, events.Permanent},
		"a batch without bytes": {true, nil, zipped(""), events.ClassNetwork, events.Retryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "content")
			var sent atomic.Int64
			bomb := func(w http.ResponseWriter) {
				w.Header().Set("Content-Encoding", "gzip")
				n, err := w.Write(tc.start)
				for more := bytes.Repeat(tc.more, 1000); err == nil; n, err = w.Write(more) {
					sent.Add(int64(n))
				}
			}
			s.get = func(w http.ResponseWriter, _ *http.Request) { bomb(w) }
			if tc.batch {
				s.batch = func(w http.ResponseWriter, _ []byte) { bomb(w) }
			}
			_, err := s.download(t)
			testenv.MustFail(t, err, tc.class, tc.kind)
			s.Close()
			if most := int64(maxTries * (spareBytes + 8<<20)); sent.Load() > most { // buffers of sockets included
				t.Errorf("the server has sent %d bytes, want at most %d", sent.Load(), most)
			}
		})
	}
}

// TestCredentialsOfDownloads: git-lfs sends a credential to the URL of an action only if the server has answered 401 there, or
// to its own server. A presigned URL that also gets a credential is refused by object stores.
func TestCredentialsOfDownloads(t *testing.T) {
	const auth = " Bearer t0ken"
	anonymous := func(s *server) { // refuses a credential, as an object store refuses two
		serve := s.get
		s.get = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			serve(w, r)
		}
	}
	private := func(s *server) {
		serve := s.get
		s.get = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer t0ken" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			serve(w, r)
		}
	}
	redirect := func(to string) func(s *server) {
		return func(s *server) {
			serve := s.get
			s.get = func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, repoPath) && r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
				} else if strings.HasPrefix(r.URL.Path, repoPath) {
					http.Redirect(w, r, to, http.StatusFound)
				} else if r.Header.Get("Authorization") != "" {
					w.WriteHeader(http.StatusBadRequest)
				} else {
					serve(w, r)
				}
			}
		}
	}
	own := serverPath + "/objects/OID"
	for name, tc := range map[string]struct {
		action map[string]any
		do     func(s *server)
		urls   []string
		want   []string
		class  events.Class // "" for a success
	}{
		"that of the server":              {map[string]any{"href": own}, private, nil, []string{own + auth}, ""},
		"signed in the query":             {map[string]any{"href": "/store/OID?X-Amz-Signature=abc"}, anonymous, nil, []string{"/store/OID?X-Amz-Signature=abc"}, ""},
		"signed in the query, below":      {map[string]any{"href": own + "?sig=abc"}, anonymous, nil, []string{own + "?sig=abc"}, ""},
		"signed in a header":              {map[string]any{"href": "/store/OID", "header": `"X-Ms-Sig":"abc"`}, anonymous, nil, []string{"/store/OID"}, ""},
		"signed in a header, below":       {map[string]any{"href": own, "header": `"X-Ms-Sig":"abc"`}, anonymous, nil, []string{own}, ""},
		"with its own Authorization":      {map[string]any{"href": own, "header": `"Authorization":"Basic eDp5"`}, nil, nil, []string{own + " Basic eDp5"}, ""},
		"the same in lower case":          {map[string]any{"href": own, "header": `"authorization":"Basic eDp5"`}, nil, nil, []string{own + " Basic eDp5"}, ""},
		"public":                          {map[string]any{"href": "/store/OID"}, anonymous, nil, []string{"/store/OID"}, ""},
		"authenticated":                   {map[string]any{"href": own, "authenticated": true}, anonymous, nil, []string{own}, ""},
		"authenticated, but private":      {map[string]any{"href": own, "authenticated": true}, private, nil, []string{own}, events.ClassAuth},
		"elsewhere, private":              {map[string]any{"href": "/store/OID"}, private, nil, []string{"/store/OID", "/store/OID" + auth}, ""},
		"elsewhere, private, a header":    {map[string]any{"href": "/store/OID", "header": `"X":"y"`}, private, nil, []string{"/store/OID", "/store/OID" + auth}, ""},
		"elsewhere, private, not covered": {map[string]any{"href": "/store/OID"}, private, []string{repoPath}, []string{"/store/OID"}, events.ClassAuth},
		"a token in the query, private":   {map[string]any{"href": "/store/OID?token=abc"}, private, nil, []string{"/store/OID?token=abc"}, events.ClassAuth},
		"its Authorization refused":       {map[string]any{"href": own, "header": `"Authorization":"Basic eDp5"`}, private, nil, []string{own + " Basic eDp5"}, events.ClassAuth},
		"a redirect to a signed URL":      {map[string]any{"href": own}, redirect("/store/x?sig=abc"), nil, []string{own + auth, "/store/x?sig=abc"}, ""},
		"a redirect of a signed URL":      {map[string]any{"href": "/store/OID?sig=abc"}, func(s *server) { anonymous(s); moved(s) }, nil, []string{"/store/OID?sig=abc", "/moved/OID?sig=abc"}, ""},
		"a redirect to a private URL": {map[string]any{"href": "/store/OID?sig=abc"}, func(s *server) { private(s); moved(s) }, nil,
			[]string{"/store/OID?sig=abc", "/moved/OID?sig=abc", "/moved/OID?sig=abc" + auth}, ""},
		"a redirect, authenticated": {map[string]any{"href": own, "authenticated": true}, moved, nil, []string{own, "/moved" + own}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "content")
			if tc.do != nil {
				tc.do(s)
			}
			if tc.urls != nil {
				s.urls = tc.urls
			}
			s.action = tc.action
			s.action["href"] = "HOST" + strings.ReplaceAll(tc.action["href"].(string), "OID", s.want.OID.String())
			got, err := s.download(t)
			if tc.class != "" {
				testenv.MustFail(t, err, tc.class, events.Permanent)
			} else if err != nil || got != "content" {
				t.Errorf("%q, %v", got, err)
			}
			if !slices.Equal(s.downloads(), tc.want) {
				t.Errorf("requests %q, want %q", s.downloads(), tc.want)
			}
		})
	}
}

// moved redirects requests to /store and to the server to /moved.
func moved(s *server) {
	serve := s.get
	s.get = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/moved") {
			serve(w, r)
			return
		}
		http.Redirect(w, r, "/moved"+strings.TrimPrefix(r.URL.String(), "/store"), http.StatusFound)
	}
}

// TestTheCredentialOfTheBatchAPI is sent at once: git-lfs, too, does so after the first time.
func TestTheCredentialOfTheBatchAPI(t *testing.T) {
	s := newServer(t, "content")
	if got, err := s.download(t); err != nil || got != "content" {
		t.Errorf("%q, %v", got, err)
	}
	if want := "POST " + serverPath + "/objects/batch Bearer t0ken"; s.requests[0] != want {
		t.Errorf("the first request is %q, want %q", s.requests[0], want)
	}
}
