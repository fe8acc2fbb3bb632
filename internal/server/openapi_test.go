package server_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// TestMain asks, after all tests, whether they have seen all that the document promises.
func TestMain(m *testing.M) {
	flag.Parse()
	document() // or all tests would fail for the same reason
	code := m.Run()
	all := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && flag.Lookup("test.list").Value.String() == ""
	if missing := seen.missing(); code == 0 && all && len(missing) > 0 {
		fmt.Printf("openapi.yaml has what no test has seen:\n  %s\n", strings.Join(missing, "\n  "))
		code = 1
	}
	os.Exit(code)
}

// unseen are answers that no test brings about, and why.
var unseen = map[string]string{}

// document is openapi.yaml, read strictly: to its readers a field that it does not know is to be ignored, and
// to these tests it is one that was forgotten.
var document = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(server.OpenAPI())
	if err != nil {
		panic(err)
	}
	for _, s := range doc.Components.Schemas {
		closeObjects(s)
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for _, r := range op.Responses.Map() {
				for _, media := range r.Value.Content {
					closeObjects(media.Schema)
				}
			}
		}
	}
	return doc
})

// closeObjects has a schema that lists properties, and those within it, allow no others.
func closeObjects(ref *openapi3.SchemaRef) {
	if ref == nil || ref.Value == nil {
		return
	}
	s, no := ref.Value, false
	if others := &s.AdditionalProperties; len(s.Properties) > 0 && others.Has == nil && others.Schema == nil {
		others.Has = &no
	}
	for _, p := range s.Properties {
		closeObjects(p)
	}
	closeObjects(s.Items)
}

// exchanges are the operations and statuses that were seen, as "GET /livez 200".
type exchanges struct {
	mu  sync.Mutex
	had map[string]bool
}

var seen = exchanges{had: map[string]bool{}}

func (e *exchanges) note(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.had[name] = true
}

func (e *exchanges) missing() []string {
	var missing []string
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				name := method + " " + path + " " + status
				switch _, known := unseen[name]; {
				case !e.had[name] && !known:
					missing = append(missing, name)
				case e.had[name] && known:
					missing = append(missing, name+": it is seen after all; unseen need not list it")
				}
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// pathOf is the path in the document of a mux's pattern: "GET /repos/{repo...}" is there as /repos/{repo}.
func pathOf(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	return method, strings.ReplaceAll(path, "...}", "}")
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// documented is the server's handler, each of whose exchanges is held against the document: a request that is
// taken has to be as it says, and every answer.
func documented(t testing.TB, cfg server.Config) http.Handler {
	handler := server.Handler(cfg)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const most = 4 << 20
		sent := &head{most: most}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, sent), r.Body}
		answer := &recording{ResponseWriter: w, status: http.StatusOK}
		handler.ServeHTTP(answer, r)
		if r.Pattern == "" {
			if answer.status != http.StatusForbidden && answer.status != http.StatusNotFound && answer.status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s is answered %d, and is none of the server's", r.Method, r.URL, answer.status)
			}
			return
		}
		if err := check(r, sent.b.Bytes(), answer); err != nil {
			t.Errorf("%s %s is answered %d, which openapi.yaml does not have so: %v\nrequest: %.500s\nanswer: %.2000s",
				r.Method, r.URL, answer.status, err, sent.b.Bytes(), answer.body.Bytes())
		}
	})
}

func check(r *http.Request, body []byte, answer *recording) error {
	method, path := pathOf(r.Pattern)
	item := document().Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		return fmt.Errorf("%s is not there", r.Pattern)
	}
	params := map[string]string{}
	for _, name := range inPath.FindAllStringSubmatch(path, -1) {
		params[name[1]] = r.PathValue(name[1])
	}
	request := r.Clone(r.Context())
	request.Body = io.NopCloser(bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: params,
		Route: &routers.Route{Spec: document(), Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)},
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
			ExcludeRequestBody: strings.HasPrefix(path, "/hooks/"), // which is the forge's to document
		},
	}
	if answer.status < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			return fmt.Errorf("the request is taken, and: %w", err)
		}
	}
	seen.note(fmt.Sprint(method, " ", path, " ", answer.status))
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Options: input.Options, Status: answer.status, Header: answer.Header(),
		Body: io.NopCloser(&answer.body),
	})
}

// head keeps the beginning of what is written to it.
type head struct {
	b    bytes.Buffer
	most int
}

func (h *head) Write(p []byte) (int, error) {
	h.b.Write(p[:min(len(p), h.most-h.b.Len())])
	return len(p), nil
}

// recording keeps an answer.
type recording struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recording) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recording) Write(p []byte) (int, error) {
	if r.Header().Get("Content-Type") == "" {
		r.Header().Set("Content-Type", http.DetectContentType(p)) // as the server under it would
	}
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

func (r *recording) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// everything is a server that answers all that there is to answer.
func everything() server.Config {
	return server.Config{
		Publisher: silent{}, Changes: struct{ server.Changes }{}, Repos: struct{ server.Repos }{}, Locks: struct{ server.Locks }{},
		Dead: struct{ server.Dead }{}, Streams: struct{ server.Streams }{}, Watches: struct{ server.Watches }{}, Hooks: &server.Hooks{},
		Metrics: http.NotFoundHandler(),
	}
}

func TestTheDocumentHasEveryRouteAndNoOther(t *testing.T) {
	if err := document().Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var served, written []string
	for _, pattern := range server.Patterns(everything()) {
		method, path := pathOf(pattern)
		served = append(served, method+" "+path)
	}
	for path, item := range document().Paths.Map() {
		for method := range item.Operations() {
			written = append(written, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(written)
	if !slices.Equal(served, written) {
		t.Errorf("the server has\n  %s\nand openapi.yaml\n  %s", strings.Join(served, "\n  "), strings.Join(written, "\n  "))
	}
}

// targetOf is a path with something in each place.
func targetOf(path string) string {
	return strings.NewReplacer("{repo}", "acme/widgets", "{entry}", "1-0", "{id}", "1-0").Replace(path)
}

// TestWhatIsGuardedSaysSo asks everything without the token, of a server that has one and of one that has none
// and listens to others.
func TestWhatIsGuardedSaysSo(t *testing.T) {
	cfg := everything()
	public := documented(t, cfg)
	cfg.Token = "t0ken"
	withToken := documented(t, cfg)
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Security == nil {
				continue
			}
			target := targetOf(path)
			for want, handler := range map[int]http.Handler{http.StatusUnauthorized: withToken, http.StatusForbidden: public} {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader("{}")))
				if w.Code != want {
					t.Errorf("%s %s: %d, want %d", method, target, w.Code, want)
				}
			}
		}
	}
}

func TestTheDocumentIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	documented(t, everything()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/openapi.yaml", nil))
	if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), server.OpenAPI()) {
		t.Errorf("%d, %d bytes; want the document", w.Code, w.Body.Len())
	}
}

// TestWithoutRedisEverythingSaysSo asks for all that is Redis' to answer, and that the document says may be
// unavailable.
func TestWithoutRedisEverythingSaysSo(t *testing.T) {
	redisServer := redistest.Start(t)
	cfg := tracked(t, redisServer)
	client, namespace := redisServer.Client(), events.DefaultNamespace
	dead, err := stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client})
	if err != nil {
		t.Fatal(err)
	}
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: namespace.Locks()})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Repos, cfg.Locks, cfg.Dead, cfg.Watches = state.NewStore(client, namespace), inspector, dead, watch.NewRegistry(client, namespace)
	cfg.Streams = telemetry.NewStreams(client, string(namespace), namespace.Changes())
	handler := documented(t, cfg)
	redisServer.Stop()
	bodies := map[string]string{"/api/v1/changes": plain, "/api/v1/watches": `{"app":"docs","url":"https://example.com/acme/widgets.git"}`}
	queries := map[string]string{"DELETE /api/v1/watches": "?repo=acme/widgets&app=docs", "DELETE /api/v1/locks/{repo}": "?fence=1"}
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Responses.Status(http.StatusServiceUnavailable) == nil || !strings.HasPrefix(path, "/api/") {
				continue
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+targetOf(path)+queries[method+" "+path], strings.NewReader(bodies[path])))
			if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "127.0.0.1") {
				t.Errorf("%s %s: %d %s, want 503", method, path, w.Code, w.Body)
			}
		}
	}
}

func TestAWatchThatCannotBeReadIsNamed(t *testing.T) {
	url, redisServer := startWatches(t)
	auth := http.Header{"Authorization": {"Bearer t0ken"}}
	put := `{"app":"docs","url":"https://example.com/acme/widgets.git"}`
	if status, text := do(t, "PUT", url, put, auth); status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	key := events.DefaultNamespace.Watches() + "of:acme/widgets"
	if err := redisServer.Client().HSet(t.Context(), key, "docs ", "{").Err(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][2]string{{"GET", ""}, {"PUT", put}} {
		if status, text := do(t, tc[0], url, tc[1], auth); status != http.StatusInternalServerError || !strings.Contains(text, "acme/widgets") {
			t.Errorf("%s: %d %s, want 500", tc[0], status, text)
		}
	}
}
