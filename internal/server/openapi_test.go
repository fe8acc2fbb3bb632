package server_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/feed"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestMain checks, after all tests have passed, that they covered every response in the document.
func TestMain(m *testing.M) {
	testenv.Parallel(8)
	flag.Parse()
	document() // fail early if the document is invalid
	if _, err := exec.LookPath("redis-server"); err != nil || os.Getenv("LOCKSTEP_TEST_REDIS") == "embedded" {
		for _, name := range []string{"GET /api/v1/workers 200", "DELETE /api/v1/workers/{name} 200", "DELETE /api/v1/workers/{name} 404", "DELETE /api/v1/workers/{name} 409"} {
			uncovered[name] = "for the embedded Redis, no consumer is ever idle"
		}
	}
	code := m.Run()
	all := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && flag.Lookup("test.list").Value.String() == ""
	if missing := covered.missing(); code == 0 && all && len(missing) > 0 {
		fmt.Printf("responses in openapi.yaml that no test covers:\n  %s\n", strings.Join(missing, "\n  "))
		code = 1
	}
	os.Exit(code)
}

// uncovered lists the responses that no test triggers, with the reason.
var uncovered = map[string]string{}

// document is openapi.yaml without additional properties: clients must ignore unknown fields, but the tests must find
// fields that are not documented.
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

// closeObjects forbids additional properties in a schema with properties, and in the schemas within it.
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

// coverage is the set of responses triggered by tests, such as "GET /livez 200".
type coverage struct {
	mu        sync.Mutex
	responses map[string]bool
}

var covered = coverage{responses: map[string]bool{}}

func (c *coverage) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.responses[name] = true
}

func (c *coverage) missing() []string {
	var missing []string
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				name := method + " " + path + " " + status
				switch _, exempt := uncovered[name]; {
				case !c.responses[name] && !exempt:
					missing = append(missing, name)
				case c.responses[name] && exempt:
					missing = append(missing, name+": covered now, remove it from uncovered")
				}
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// pathOf converts a mux pattern to a method and a path of the document: "GET /repos/{repo...}" to /repos/{repo}.
func pathOf(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	return method, strings.ReplaceAll(path, "...}", "}")
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// documented returns the server's handler, which validates accepted requests and all responses against the document.
func documented(t testing.TB, cfg server.Config) http.Handler {
	handler := server.Handler(cfg)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &head{limit: 4 << 20}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, sent), r.Body}
		answer := &recording{ResponseWriter: w, status: http.StatusOK}
		handler.ServeHTTP(answer, r)
		if r.Header.Get("Lockstep-Cell") != "" { // for other cells, not part of the API
			return
		}
		if r.Pattern == "" {
			if answer.status != http.StatusForbidden && answer.status != http.StatusNotFound && answer.status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s returns %d, but matches no pattern", r.Method, r.URL, answer.status)
			}
			return
		}
		if err := check(r, sent.b.Bytes(), answer); err != nil {
			t.Errorf("%s %s returns %d, which does not match openapi.yaml: %v\nrequest: %.500s\nresponse: %.2000s",
				r.Method, r.URL, answer.status, err, sent.b.Bytes(), answer.body.Bytes())
		}
	})
}

func check(r *http.Request, body []byte, answer *recording) error {
	method, path := pathOf(r.Pattern)
	item := document().Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		return fmt.Errorf("%s is not documented", r.Pattern)
	}
	params := map[string]string{}
	for _, name := range inPath.FindAllStringSubmatch(path, -1) {
		params[name[1]] = r.PathValue(name[1])
	}
	request := r.Clone(r.Context())
	request.Body = io.NopCloser(bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	isGit := strings.HasPrefix(path, "/git/")
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: params,
		Route: &routers.Route{Spec: document(), Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)},
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
			ExcludeRequestBody:  strings.HasPrefix(path, "/hooks/") || isGit, // defined by the forge, and by Git
			ExcludeResponseBody: isGit,
		},
	}
	if answer.status < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			return fmt.Errorf("an invalid request is accepted: %w", err)
		}
	}
	covered.add(fmt.Sprint(method, " ", path, " ", answer.status))
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Options: input.Options, Status: answer.status, Header: answer.Header(),
		Body: io.NopCloser(&answer.body),
	})
}

// head is a writer that keeps the first bytes, up to a limit.
type head struct {
	b     bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.b.Write(p[:min(len(p), h.limit-h.b.Len())])
	return len(p), nil
}

// recording records a response.
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
		r.Header().Set("Content-Type", http.DetectContentType(p)) // as net/http does
	}
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

func (r *recording) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// everything returns a configuration with all endpoints enabled.
func everything() server.Config {
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	return server.Config{
		Publisher: &stream.Publisher{}, Changes: struct{ server.Changes }{}, Repos: reposOf(nowhere), Reading: &server.Reading{}, Leases: &operate.Leases{},
		Letters: &operate.Letters{}, Outboxes: &operate.Outboxes{}, Workers: &operate.Workers{}, Results: &operate.Results{}, Streams: &telemetry.Streams{}, Hosts: &telemetry.Hosts{}, Watches: &operate.Watches{}, Hooks: &server.Hooks{},
		Metrics: http.NotFoundHandler(),
		Verdict: func(ctx context.Context) (operate.Verdict, error) { return operate.Verdict{}, nowhere.Ping(ctx).Err() },
	}
}

func TestOpenAPIDocumentsEveryRoute(t *testing.T) {
	t.Parallel()
	testenv.Must(0, document().Validate(t.Context()))(t)
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

// targetOf fills in the parameters of a path.
func targetOf(path string) string {
	return strings.NewReplacer("{repo}", "acme/widgets", "{path}", "docs/README.md", "{entry}", "1-0", "{id}", "1-0", "{name}", "node-1", "{app}", "docs").Replace(path)
}

// TestProtectedEndpointsNeedTheToken sends requests without the token to a server with a token, and to a public server
// without one, which does not say that tokens of apps are of no use.
func TestProtectedEndpointsNeedTheToken(t *testing.T) {
	t.Parallel()
	cfg := everything()
	public := documented(t, cfg)
	cfg.Token = fixed("t0ken")
	withToken := documented(t, cfg)
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Security == nil {
				continue
			}
			target := targetOf(path)
			_, forApps := (*op.Security)[0]["appToken"]
			for want, handler := range map[int]http.Handler{http.StatusUnauthorized: withToken, http.StatusForbidden: public} {
				if forApps {
					want = http.StatusUnauthorized
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader("{}")))
				if w.Code != want {
					t.Errorf("%s %s: %d, want %d", method, target, w.Code, want)
				}
			}
		}
	}
}

func TestOpenAPIDocumentIsServed(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	documented(t, everything()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/openapi.yaml", nil))
	if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), server.OpenAPI()) {
		t.Errorf("%d, %d bytes; want the document", w.Code, w.Body.Len())
	}
}

// TestUnavailableWithoutRedis calls every endpoint that may return 503, without Redis.
func TestUnavailableWithoutRedis(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	cfg := tracked(t, redisServer)
	client, namespace := redisServer.Client(), events.DefaultNamespace
	cfg.Repos, cfg.Leases, cfg.Watches = reposOf(client), leasesOf(client), watchesOf(client)
	cfg.Letters = &operate.Letters{Cells: cells.Single(client, cells.Member{Namespace: namespace})}
	cfg.Outboxes = &operate.Outboxes{Cells: cfg.Letters.Cells}
	cfg.Workers, cfg.Results = &operate.Workers{Cells: cfg.Letters.Cells}, &operate.Results{Cells: cfg.Letters.Cells}
	cfg.Streams = telemetry.NewStreams(client, string(namespace), namespace.Changes())
	cfg.Reading = &server.Reading{Tokens: access.NewTokens(client, namespace), Reader: &access.Reader{
		Watches: watch.NewRegistry(client, namespace), States: state.NewStore(client, namespace),
	}}
	cfg.Reading.Feed, cfg.Reading.Followers = newFeed(t, redisServer, cfg.Reading), feed.NewFollowers(client, "", namespace, namespace)
	cfg.Hosts = telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(namespace)})
	cfg.Verdict = func(ctx context.Context) (operate.Verdict, error) { return operate.Verdict{}, client.Ping(ctx).Err() }
	handler := documented(t, cfg)
	redisServer.Stop()
	var requests sync.WaitGroup
	bodies := map[string]string{"/api/v1/changes": plain, "/api/v1/watches": `{"app":"docs","url":"https://example.com/acme/widgets.git"}`,
		"/api/v1/followers/{name}": `{"cursor":"MSBBQkNERUZHSElKS0xNTk9QIDAtMCAw"}`}
	queries := map[string]string{"DELETE /api/v1/watches": "?repo=acme/widgets&app=docs", "DELETE /api/v1/locks/{repo}": "?fence=1",
		"POST /api/v1/dead/retry": "?all=true"}
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Responses.Status(http.StatusServiceUnavailable) == nil || !strings.HasPrefix(path, "/api/") {
				continue
			}
			requests.Go(func() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+targetOf(path)+queries[method+" "+path], strings.NewReader(bodies[path])))
				if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "127.0.0.1") {
					t.Errorf("%s %s: %d %s, want 503", method, path, w.Code, w.Body)
				}
			})
		}
	}
	requests.Wait()
}

func TestUnreadableWatchIsNamed(t *testing.T) {
	t.Parallel()
	url, redisServer := startWatches(t)
	auth := http.Header{"Authorization": {"Bearer t0ken"}}
	put := `{"app":"docs","url":"https://example.com/acme/widgets.git"}`
	if status, text := do(t, "PUT", url, put, auth); status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	key := events.DefaultNamespace.Watches() + "of:acme/widgets"
	testenv.Must(0, redisServer.Client().HSet(t.Context(), key, "docs ", "{").Err())(t)
	for _, tc := range [][2]string{{"GET", ""}, {"PUT", put}} {
		if status, text := do(t, tc[0], url, tc[1], auth); status != http.StatusInternalServerError || !strings.Contains(text, "acme/widgets") {
			t.Errorf("%s: %d %s, want 500", tc[0], status, text)
		}
	}
}
