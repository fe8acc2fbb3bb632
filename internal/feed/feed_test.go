package feed_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/changes"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestMain(m *testing.M) {
	testenv.Parallel(8)
	testenv.Main(m)
}

// world has results, watches of docs and scan, and a feed of the results.
type world struct {
	*testing.T
	redis    *redistest.Server
	client   redis.UniversalClient
	registry *watch.Registry
	tokens   *access.Tokens
	feed     *feed.Feed
	added    int
}

func newWorld(t *testing.T, server *redistest.Server, edit ...func(*feed.Config)) *world {
	t.Helper()
	w := &world{T: t, redis: server, client: server.Client()}
	namespace := events.DefaultNamespace
	w.registry, w.tokens = watch.NewRegistry(w.client, namespace), access.NewTokens(w.client, namespace)
	reader := &access.Reader{Watches: w.registry, States: state.NewStore(w.client, namespace)}
	blocking := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	cfg := feed.Config{
		Redis: w.client, Reader: stream.NewReader(blocking), Removed: w.tokens.Removed,
		Sources:   func() []feed.Source { return []feed.Source{{Namespace: namespace, Audiences: reader.Audiences}} },
		Heartbeat: 50 * time.Millisecond, Check: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
	for _, e := range edit {
		e(&cfg)
	}
	w.feed = testenv.Must(feed.New(cfg))(t)
	t.Cleanup(func() { w.feed.Close(); blocking.Close() })
	return w
}

func (w *world) watch(app, repo, ref string) watch.Watch {
	w.Helper()
	one := watch.Watch{
		App: app, URL: "https://git.example.com/" + repo + ".git", Credential: "robot",
		Repo: testenv.Must(events.ParseRepoPath(repo))(w.T), Ref: testenv.Must(watch.ParseSelector(ref))(w.T),
	}
	testenv.Must(w.registry.Put(w.Context(), one))(w.T)
	return one
}

// add adds a result of the default branch, changed by edit, and returns its ID.
func (w *world) add(app, repo string, edit ...func(*events.Result)) string {
	w.Helper()
	return w.addTo(events.DefaultNamespace, app, repo, edit...)
}

func (w *world) addTo(cell events.Namespace, app, repo string, edit ...func(*events.Result)) string {
	w.Helper()
	w.added++
	r := events.Result{
		ID: fmt.Sprint("r", w.added), Type: events.ResultSynced, Source: "/test", Time: time.Now(), App: app, Repo: testenv.Must(events.ParseRepoPath(repo))(w.T),
		Ref: testenv.Must(events.ParseRef("refs/heads/main"))(w.T), After: strings.Repeat("a", 40), Path: repo, Tree: repo + "~1",
	}
	for _, e := range edit {
		e(&r)
	}
	fields := testenv.Must(stream.Fields(testenv.Must(changes.ResultMessage(r))(w.T)))(w.T)
	testenv.Must(w.client.XAdd(w.Context(), &redis.XAddArgs{Stream: cell.Results(), Values: fields}).Result())(w.T)
	return r.ID
}

// reading is a stream that a test reads.
type reading struct {
	*testing.T
	conn net.Conn
	in   *bufio.Reader
	last string // ID of the last event
}

type event struct{ id, kind, data string }

// open opens a stream of an app, "" for the operator. The first event has been read.
func (w *world) open(app string, start feed.Start) *reading {
	w.Helper()
	return w.openAs(feed.Client{App: app}, start)
}

func (w *world) openAs(who feed.Client, start feed.Start) *reading {
	w.Helper()
	r, at := w.dial(who, start)
	if first := r.next(); first.id != at.String() || first.kind != "" || first.data != "" {
		w.Fatalf("first %+v, want the position %s", first, at)
	}
	return r
}

// dial opens a stream, over a connection with small buffers, and returns where it begins.
func (w *world) dial(who feed.Client, start feed.Start, header ...string) (*reading, feed.Cursor) {
	w.Helper()
	who.From = testenv.Must(w.feed.Locate(w.Context(), start))(w.T)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "close")
		_ = w.feed.Serve(rw, r, who)
	}))
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
		return ctx
	}
	server.Start()
	conn := testenv.Must(net.Dial("tcp", server.Listener.Addr().String()))(w.T)
	_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	w.Cleanup(func() { conn.Close(); server.Close() })
	testenv.Must(fmt.Fprint(conn, strings.Join(append([]string{"GET / HTTP/1.1", "Host: test"}, header...), "\r\n")+"\r\n\r\n"))(w.T)
	response := testenv.Must(http.ReadResponse(bufio.NewReader(conn), nil))(w.T)
	return &reading{T: w.T, conn: conn, in: bufio.NewReader(response.Body)}, who.From
}

// next returns the next event, heartbeats included.
func (r *reading) next() event {
	r.Helper()
	e, err := r.read()
	if err != nil {
		r.Fatalf("after %+v: %v", e, err)
	}
	return e
}

func (r *reading) read() (e event, err error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return e, err
		}
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			e.data = value
		case ":": // a comment
		case "":
			r.last = cmp.Or(e.id, r.last)
			return e, nil
		default:
			return e, fmt.Errorf("unexpected line %q", line)
		}
	}
}

// result returns the type and ID of the next result.
func (r *reading) result() string {
	r.Helper()
	for {
		e := r.next()
		if e.kind == "" {
			continue
		}
		var document struct {
			ID   string `json:"id"`
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(e.data), &document); err != nil {
			r.Fatalf("%+v: %v", e, err)
		}
		if e.kind != "gone" && document.Type != "lockstep.result."+e.kind+".v1" {
			r.Fatalf("%+v: type %s", e, document.Type)
		}
		return strings.TrimSpace(e.kind + " " + document.ID)
	}
}

func (r *reading) want(results ...string) {
	r.Helper()
	for _, want := range results {
		if got := r.result(); got != want {
			r.Fatalf("got %q, want %q", got, want)
		}
	}
}

// ends reads until the stream ends, and fails if a result comes first.
func (r *reading) ends() {
	r.Helper()
	for {
		e, err := r.read()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), err != nil && strings.Contains(err.Error(), "reset"):
			return
		case err != nil || e.kind != "":
			r.Fatalf("%+v, %v; want the end", e, err)
		}
	}
}

func TestEachAppGetsItsResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	w.watch("docs", "acme/widgets", "")
	w.watch("docs", "acme/new", "")
	w.watch("scan", "acme/widgets", "refs/heads/*")
	docs, scan, operator := w.open("docs", feed.Start{}), w.open("scan", feed.Start{}), w.open("", feed.Start{})
	ofType := func(kind events.ResultType) func(*events.Result) {
		return func(r *events.Result) { r.Type, r.Path, r.Tree = kind, "", "" }
	}
	class := func(c events.Class) func(*events.Result) { return func(r *events.Result) { r.Class = c } }
	whole := func(r *events.Result) { r.Ref = events.Ref{} }
	to := func(repo string) func(*events.Result) {
		return func(r *events.Result) { r.To = testenv.Must(events.ParseRepoPath(repo))(t) }
	}
	w.add("docs", "acme/widgets")                                                                               // r1
	w.add("scan", "acme/widgets")                                                                               // r2
	w.add("docs", "acme/widgets", func(r *events.Result) { r.Before = r.After })                                // r3 unchanged
	w.add("docs", "acme/widgets", ofType(events.ResultFailed), class(events.ClassAuth))                         // r4
	w.add("docs", "acme/widgets", ofType(events.ResultFailed), class(events.ClassBusy))                         // r5 quiet
	w.add("docs", "acme/secret")                                                                                // r6 not watched
	w.add("docs", "acme/widgets", func(r *events.Result) { r.Type, r.View = events.ResultView, "api" })         // r7
	w.add("", "acme/widgets", ofType(events.ResultPolled))                                                      // r8
	w.add("docs", "acme/widgets", ofType(events.ResultRemoved), whole)                                          // r9
	w.add("", "acme/old", ofType(events.ResultMoved), whole, to("acme/new"))                                    // r10
	w.add("", "acme/secret", ofType(events.ResultRemoved), whole)                                               // r11
	w.add("scan", "acme/widgets", ofType(events.ResultRemoved))                                                 // r12 of a branch
	w.add("", "acme/widgets", func(r *events.Result) { r.Path, r.Tree = "acme/widgets@x", "acme/widgets@x~1" }) // r13 without an app
	w.add("docs", "acme/new")                                                                                   // r14
	w.add("scan", "acme/widgets")                                                                               // r15
	docs.want("synced r1", "failed r4", "view r7", "removed r9", "moved r10", "synced r14")
	scan.want("synced r2", "removed r12", "synced r15")
	operator.want("synced r1", "synced r2", "synced r3", "failed r4", "failed r5", "synced r6", "view r7", "polled r8", "removed r9", "moved r10",
		"removed r11", "removed r12", "synced r13", "synced r14", "synced r15")
}

func TestStreamsResumeWhereTheyEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	w.watch("docs", "acme/widgets", "")
	var want []string
	for range 350 { // more than one batch
		want = append(want, "synced "+w.add("docs", "acme/widgets"))
		w.add("docs", "acme/other")
	}
	r := w.open("docs", feed.Start{Oldest: true})
	r.want(want[:120]...)
	again := w.open("docs", feed.Start{Cursor: r.last})
	again.want(want[120:]...)
	want = append(want, "synced "+w.add("docs", "acme/widgets"))
	r.want(want[120:]...)
	again.want(want[350])
	w.add("docs", "acme/other")
	for begin := again.last; again.next().id == begin; { // a heartbeat moves past what is not for the app
	}
	late := w.open("docs", feed.Start{Cursor: again.last})
	w.open("docs", feed.Start{}).want() // the position alone
	id := w.add("docs", "acme/widgets")
	late.want("synced " + id)
	again.want("synced " + id)
}

func TestCursorsThatAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.StartReal(t))
	w.watch("docs", "acme/widgets", "")
	results := events.DefaultNamespace.Results()
	locate := func(cursor string) error {
		_, err := w.feed.Locate(t.Context(), feed.Start{Cursor: cursor})
		return err
	}
	isGone := func(name string, err error) {
		t.Helper()
		gone, ok := errors.AsType[*feed.GoneError](err)
		if !ok {
			t.Fatalf("%s: %v, want gone", name, err)
		}
		if err := locate(gone.End.String()); err != nil {
			t.Errorf("%s: the position to start from anew: %v", name, err)
		}
	}
	never := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	var cursors []string
	for range 10 {
		w.add("docs", "acme/widgets")
		cursors = append(cursors, testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String())
	}
	for i, cursor := range append([]string{never}, cursors...) {
		if err := locate(cursor); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	testenv.Must(w.client.XTrimMaxLen(t.Context(), results, 4).Result())(t)
	isGone("before the first", locate(never))
	isGone("five before what is kept", locate(cursors[0]))
	isGone("one before the last that was trimmed", locate(cursors[4]))
	if err := locate(cursors[5]); err != nil {
		t.Errorf("the last that was trimmed: nothing after it is missing, but %v", err)
	}
	testenv.Must(w.client.XTrimMaxLen(t.Context(), results, 0).Result())(t)
	isGone("all trimmed", locate(cursors[8]))
	if err := locate(cursors[9]); err != nil {
		t.Errorf("the end of an empty stream: %v", err)
	}
	w.add("docs", "acme/widgets")
	if err := locate(cursors[9]); err != nil {
		t.Errorf("one result later: %v", err)
	}
	testenv.Must(w.client.Del(t.Context(), results).Result())(t)
	isGone("stream deleted", locate(cursors[9]))
	w.add("docs", "acme/widgets")
	isGone("stream deleted, new result", locate(cursors[9]))
	testenv.Must(w.client.FlushAll(t.Context()).Result())(t)
	isGone("Redis emptied", locate(cursors[9]))
	for range 20 {
		w.add("docs", "acme/widgets")
	}
	isGone("Redis emptied, results since", locate(cursors[9]))
	for _, text := range []string{"x", "1", "MQ", "!", strings.Repeat("A", 1000), cursors[0][:20], cursors[0] + "A", "1795223511284-0", " " + cursors[0], "MiBhIGIgYw"} {
		if err := locate(text); !errors.Is(err, feed.ErrMalformed) {
			t.Errorf("%.40q: %v, want malformed", text, err)
		}
	}
}

// TestLostResultsAreReported connects clients and then takes results away that they have not received.
func TestLostResultsAreReported(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*world){
		"emptied": func(w *world) { w.client.FlushAll(w.Context()) },
		"trimmed": func(w *world) {
			pipe := w.client.TxPipeline() // at once, so that the tail misses them
			for i := range 5 {
				pipe.XAdd(w.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), Values: []string{"n", fmt.Sprint(i)}})
			}
			pipe.XTrimMaxLen(w.Context(), events.DefaultNamespace.Results(), 2)
			testenv.Must(pipe.Exec(w.Context()))(w.T)
		},
		"restored": func(w *world) { // to before the last result
			last := testenv.Must(w.client.XRevRangeN(w.Context(), events.DefaultNamespace.Results(), "+", "-", 2).Result())(w.T)
			pipe := w.client.TxPipeline()
			pipe.Del(w.Context(), events.DefaultNamespace.Results())
			pipe.XAdd(w.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), ID: last[1].ID, Values: last[1].Values})
			testenv.Must(pipe.Exec(w.Context()))(w.T)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, redistest.StartReal(t))
			w.watch("docs", "acme/widgets", "")
			docs, operator := w.open("docs", feed.Start{}), w.open("", feed.Start{})
			for range 2 {
				id := w.add("docs", "acme/widgets")
				docs.want("synced " + id)
				operator.want("synced " + id)
			}
			lose(w)
			for who, r := range map[string]*reading{"docs": docs, "operator": operator} {
				if got := r.result(); got != "gone" {
					t.Errorf("%s: %s, want gone", who, got)
				}
				r.ends()
				if _, err := w.feed.Locate(t.Context(), feed.Start{Cursor: r.last}); err == nil {
					t.Errorf("%s: its cursor is accepted", who)
				}
			}
		})
	}
}

func TestWatchesAndCredentialsTakeEffectWhileConnected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	one := w.watch("docs", "acme/widgets", "")
	w.watch("docs", "acme/marker", "")
	docs := w.open("docs", feed.Start{})
	mark := func() {
		t.Helper()
		docs.want("synced " + w.add("docs", "acme/marker"))
	}
	docs.want("synced " + w.add("docs", "acme/widgets"))
	testenv.Must(w.registry.Remove(t.Context(), one.Key()))(t)
	w.add("docs", "acme/widgets")
	mark()
	w.watch("docs", "acme/widgets", "")
	docs.want("synced " + w.add("docs", "acme/widgets"))

	known := events.DefaultNamespace.Repo(one.Repo)
	testenv.Must(w.client.HSet(t.Context(), known, state.TroubleField, testenv.Refused("robot:docs")).Result())(t)
	w.add("docs", "acme/widgets")
	w.add("docs", "acme/widgets", func(r *events.Result) { r.Type = events.ResultView })
	w.add("docs", "acme/widgets", func(r *events.Result) { r.Type = events.ResultRemoved })
	mark()
	docs.want("failed " + w.add("docs", "acme/widgets", func(r *events.Result) { r.Type, r.Class = events.ResultFailed, events.ClassAuth }))
	docs.want("removed " + w.add("docs", "acme/widgets", func(r *events.Result) { r.Type, r.Ref = events.ResultRemoved, events.Ref{} }))
	testenv.Must(w.client.HDel(t.Context(), known, state.TroubleField).Result())(t)
	docs.want("synced " + w.add("docs", "acme/widgets"))
}

func TestRemovedTokenEndsItsStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	w.watch("docs", "acme/widgets", "")
	made, secret, err := w.tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := w.tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	first := w.openAs(feed.Client{App: "docs", Token: access.HashOf(secret)}, feed.Start{})
	second := w.openAs(feed.Client{App: "docs", Token: access.HashOf(secret)}, feed.Start{})
	kept := w.openAs(feed.Client{App: "docs", Token: access.HashOf(other)}, feed.Start{})
	testenv.Must(w.tokens.Remove(t.Context(), made.ID))(t)
	first.ends()
	second.ends()
	kept.want("synced " + w.add("docs", "acme/widgets"))
	if n := w.feed.Open(); n != 1 {
		t.Errorf("%d streams", n)
	}
}

func TestStreamsSurviveRedis(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	w := newWorld(t, server)
	w.watch("docs", "acme/widgets", "")
	docs, late := w.open("docs", feed.Start{}), w.open("docs", feed.Start{})
	docs.want("synced " + w.add("docs", "acme/widgets"))
	server.Stop()
	for range 3 {
		if e := docs.next(); e.kind != "" || e.id != docs.last {
			t.Errorf("%+v, want a heartbeat", e)
		}
	}
	if _, err := w.feed.Locate(t.Context(), feed.Start{}); err == nil {
		t.Error("a position without Redis")
	}
	server.Restart()
	ctx := testenv.Context(t)
	for w.client.Ping(ctx).Err() != nil && ctx.Err() == nil {
	}
	id := w.add("docs", "acme/widgets")
	docs.want("synced " + id)
	late.want("synced r1", "synced "+id)
}

// TestSlowClientHoldsUpNobody has clients that read nothing, of the same app and of another.
func TestSlowClientHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.StartReal(t), func(cfg *feed.Config) { cfg.Stall = 2 * time.Second })
	w.watch("docs", "acme/widgets", "")
	slow, operator, docs := w.open("docs", feed.Start{}), w.open("", feed.Start{}), w.open("docs", feed.Start{})
	files := make([]events.File, 400)
	for i := range files {
		files[i] = events.File{Path: fmt.Sprintf("%030d", i), Status: events.FileModified}
	}
	var want []string
	for range 300 { // 5 MB: more than the buffers of a connection and what the tail keeps
		id := w.add("docs", "acme/widgets", func(r *events.Result) { r.Files = files })
		want = append(want, "synced "+id)
		docs.want(want[len(want)-1])
	}
	ctx := testenv.Context(t)
	for w.feed.Open() > 1 && ctx.Err() == nil { // the slow ones are cut off
		time.Sleep(10 * time.Millisecond)
	}
	got := 0
	for {
		e, err := slow.read()
		if err != nil {
			break
		}
		if e.kind != "" {
			got++
		}
	}
	if got >= len(want) || ctx.Err() != nil {
		t.Fatalf("%d results of %d, %v; want the slow client cut off", got, len(want), ctx.Err())
	}
	w.open("docs", feed.Start{Cursor: slow.last}).want(want[got:]...)
	operator.conn.Close()
}

func TestClientThatHasLeftIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t), func(cfg *feed.Config) { cfg.Heartbeat = time.Hour })
	left, stays := w.open("docs", feed.Start{}), w.open("docs", feed.Start{})
	left.conn.Close()
	ctx := testenv.Context(t)
	for w.feed.Open() > 1 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Error("the client that has left is not forgotten")
	}
	w.watch("docs", "acme/widgets", "")
	stays.want("synced " + w.add("docs", "acme/widgets"))
}

// TestBodyThatNeverComes has a request that announces a body and sends none, so the server waits for it at the end.
func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	r, _ := w.dial(feed.Client{App: "docs"}, feed.Start{}, "Content-Length: 10")
	r.next()
	w.feed.Close()
	r.ends()
	_ = r.conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, r.conn); err != nil { // until the server closes the connection
		t.Error(err)
	}
}

func TestCloseEndsStreamsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t), func(cfg *feed.Config) { cfg.Heartbeat = time.Hour })
	var all []*reading
	for range 20 {
		all = append(all, w.open("docs", feed.Start{}))
	}
	w.feed.Close()
	for _, r := range all {
		r.ends()
	}
	late, _ := w.dial(feed.Client{App: "docs"}, feed.Start{})
	late.ends()
	if _, err := w.feed.Locate(context.Background(), feed.Start{}); err != nil {
		t.Errorf("a position afterwards: %v", err)
	}
}
