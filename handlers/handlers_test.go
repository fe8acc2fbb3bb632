package handlers_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

func TestMain(m *testing.M) {
	testenv.Parallel(8)
	os.Exit(m.Run())
}

// world is a volume, a remote and a state to handle jobs with.
type world struct {
	t        *testing.T
	root     string
	git      *gitserver.Server
	server   *redistest.Server
	redis    redis.UniversalClient
	handlers handlers.Handlers
	fence    uint64
	later    time.Duration            // how far the clock of jobs is ahead
	latest   string                   // id of the last entry of the stream; "" for no stream
	waiting  []handlers.Job           // of the repository
	deferred map[string]time.Duration // by entry; the last
	env      map[string]string
	states   *state.Store
	watches  *watch.Registry
	limits   *limited        // optional
	next     []events.Change // requested by the last outcome
	more     []events.Result // further results of the last outcome
}

// newWorld also lets the test run in parallel with others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	git := testenv.Must(gitserver.Start(filepath.Join(t.TempDir(), "remote")))(t)
	t.Cleanup(git.Close)
	w := &world{t: t, root: t.TempDir(), git: git, fence: 100, env: map[string]string{}, deferred: map[string]time.Duration{}}
	volume := testenv.Must(volume.OpenVolume(w.root, volume.Config{}))(t)
	w.server = redistest.Start(t)
	w.redis = w.server.Client()
	w.states = state.NewStore(w.redis, events.DefaultNamespace)
	w.watches = watch.NewRegistry(w.redis, events.DefaultNamespace)
	credentials := credential.NewStore("", func(name string) string { return w.env[name] })
	w.handlers = handlers.Handlers{
		Volume: volume, States: w.states, Watches: w.watches, Credentials: credentials,
		Extensions: []ext.Extension{signatures.New(credentials), lfs.New(), submodules.New(credentials)},
	}
	return w
}

// job returns a job with a new fence.
func (w *world) job(entry string, c events.Change) handlers.Job {
	w.t.Helper()
	c.ID = "job-" + entry
	change := testenv.Must(events.NewChange(c))(w.t)
	w.fence++
	must(w.t, w.redis.HSet(context.Background(), events.DefaultNamespace.Locks()+change.Repo.Key(), "fence", w.fence).Err())
	job := handlers.Job{
		Change: change, Entry: entry, Attempt: 1, Fence: w.fence, FenceTo: w.fence,
		Confirm: func(context.Context) error { return nil }, Now: func() time.Time { return time.Now().Add(w.later) },
		Latest:  w.latest,
		Waiting: func(context.Context) ([]handlers.Job, error) { return slices.Clone(w.waiting), nil },
		Defer: func(_ context.Context, entries []string, delay time.Duration) error {
			for _, entry := range entries {
				w.deferred[entry] = delay
			}
			return nil
		},
	}
	if w.limits != nil {
		job.Requests = w.limits.requests(w, change)
	}
	return job
}

// outcome handles a change without settling it.
func (w *world) outcome(entry string, c events.Change) (handlers.Outcome, error) {
	w.t.Helper()
	return w.try(w.job(entry, c))
}

// try handles a job behind the backoff, as a worker does.
func (w *world) try(job handlers.Job) (handlers.Outcome, error) {
	return handlers.Backoff{Store: w.states, Log: quiet()}.Wrap(w.handlers.Handle)(context.Background(), job)
}

// deny records that the remote refuses a credential of an app.
func (w *world) deny(app, credential string) {
	w.t.Helper()
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(w.t)
	job := w.job("1-0", events.Change{URL: w.git.URL("acme/widgets")})
	must(w.t, w.states.Record(context.Background(), known, w.repo(), job.Fence, state.Trouble{
		Scope: events.ScopeCredential, App: app, Credential: credential, Class: events.ClassAuth, Failures: 1,
	}))
}

// handleUnsettled handles a change like a worker that dies before settling.
func (w *world) handleUnsettled(entry string, c events.Change) {
	w.t.Helper()
	testenv.Must(w.outcome(entry, c))(w.t)
}

// handle handles a change and settles the outcome.
func (w *world) handle(entry string, c events.Change) (events.Result, error) {
	w.t.Helper()
	outcome, err := w.outcome(entry, c)
	w.next, w.more = outcome.Changes, outcome.More
	if err == nil {
		w.store(outcome)
	}
	return outcome.Result, err
}

// store stores the state of an outcome.
func (w *world) store(outcome handlers.Outcome) {
	w.t.Helper()
	ctx, key := context.Background(), events.DefaultNamespace.Repo(outcome.Result.Repo)
	if outcome.Forget {
		must(w.t, w.redis.Del(ctx, key).Err())
	}
	if len(outcome.Drop) > 0 {
		must(w.t, w.redis.HDel(ctx, key, outcome.Drop...).Err())
	}
	if len(outcome.State) > 0 {
		must(w.t, w.redis.HSet(ctx, key, outcome.State).Err())
	}
	if len(outcome.StateTo) > 0 {
		must(w.t, w.redis.HSet(ctx, events.DefaultNamespace.Repo(outcome.Result.To), outcome.StateTo).Err())
	}
	w.settleViews(outcome)
}

// settleViews stores the state of views.
func (w *world) settleViews(outcome handlers.Outcome) {
	w.t.Helper()
	ctx, key := context.Background(), events.DefaultNamespace.Views(outcome.Result.Repo)
	if outcome.Forget {
		must(w.t, w.redis.Del(ctx, key).Err())
	}
	for field, value := range outcome.Views {
		if value == "" {
			must(w.t, w.redis.HDel(ctx, key, field).Err())
			delete(outcome.Views, field)
		}
	}
	if len(outcome.Views) > 0 {
		must(w.t, w.redis.HSet(ctx, key, outcome.Views).Err())
	}
	if len(outcome.ViewsTo) > 0 {
		must(w.t, w.redis.HSet(ctx, events.DefaultNamespace.Views(outcome.Result.To), outcome.ViewsTo).Err())
	}
}

func (w *world) mustHandle(entry string, c events.Change) events.Result {
	w.t.Helper()
	r := testenv.Must(w.handle(entry, c))(w.t)
	return r
}

func (w *world) create(files map[string]string) string {
	w.t.Helper()
	commit := testenv.Must(w.git.Create(context.Background(), "acme/widgets", files))(w.t)
	return commit
}

func (w *world) push(files map[string]string) string {
	w.t.Helper()
	commit, err := w.git.Commit(context.Background(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: files})
	if err != nil {
		w.t.Fatal(err)
	}
	return commit
}

func (w *world) published() bool {
	_, err := os.Stat(filepath.Join(w.root, "acme/widgets"))
	return err == nil
}

func TestChangesArePerApp(t *testing.T) {
	w := newWorld(t)
	url := w.git.URL("acme/widgets")
	first := w.create(map[string]string{"a": "1"})
	if r := w.mustHandle("1-0", events.Change{URL: url, App: "docs"}); r.Before != "" || r.After != first || len(r.Files) != 1 {
		t.Errorf("docs received %+v first", r)
	}
	second := w.push(map[string]string{"b": "2"})
	if r := w.mustHandle("2-0", events.Change{URL: url, App: "search"}); r.Before != "" || r.After != second || len(r.Files) != 2 {
		t.Errorf("search received %+v first, want all files", r)
	}
	third := w.push(map[string]string{"c": "3"})
	if r := w.mustHandle("3-0", events.Change{URL: url, App: "docs"}); r.Before != first || r.After != third || len(r.Files) != 2 {
		t.Errorf("docs received %+v, want both pushes since the first", r)
	}
	if r := w.mustHandle("4-0", events.Change{URL: url, App: "docs"}); r.Before != third || r.After != third || len(r.Files) != 0 {
		t.Errorf("docs received %+v, want nothing new", r)
	}
	if r := w.mustHandle("5-0", events.Change{URL: url}); r.Before != third {
		t.Errorf("the nameless app received %+v, want from what was published", r)
	}
}

func TestRemovalIsAHint(t *testing.T) {
	w := newWorld(t)
	url := w.git.URL("acme/widgets")
	w.create(map[string]string{"a": "1"})
	w.mustHandle("1-0", events.Change{URL: url})

	_, err := w.handle("2-0", events.Change{Type: events.ChangeRemoved, URL: url})
	if events.DispositionOf(err) != events.Permanent || events.ClassOf(err) != events.ClassConflict || !w.published() {
		t.Fatalf("the remote still has it: error %v, published %v; want it kept", err, w.published())
	}
	must(t, w.git.Delete("acme/widgets"))
	if r := w.mustHandle("3-0", events.Change{Type: events.ChangeRemoved, URL: url}); r.Type != events.ResultRemoved || w.published() {
		t.Errorf("result %+v, published %v; want it removed", r, w.published())
	}
}

func TestOldChangeDoesNotReviveRemovedClone(t *testing.T) {
	w := newWorld(t)
	url := w.git.URL("acme/widgets")
	w.create(map[string]string{"a": "1"})
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	w.mustHandle("5-0", events.Change{Type: events.ChangeRemoved, URL: url, Force: true})
	if r := w.mustHandle("4-0", events.Change{URL: url, App: "docs"}); r.Type != events.ResultRemoved || w.published() {
		t.Errorf("an older change: result %+v, published %v; want removed", r, w.published())
	}
	if r := w.mustHandle("6-0", events.Change{URL: url, App: "docs"}); r.Type != events.ResultSynced || r.Before != "" || !w.published() {
		t.Errorf("a newer change: result %+v, published %v; want a first clone", r, w.published())
	}
}

func TestCredentialIsSentOnlyToItsURLs(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.env["LOCKSTEP_CREDENTIAL_CI_PASSWORD"] = "s3cret"
	w.env["LOCKSTEP_CREDENTIAL_CI_URLS"] = "https://git.example.com/"
	_, err := w.handle("1-0", events.Change{URL: w.git.URL("acme/widgets"), Credential: "ci"})
	if events.DispositionOf(err) != events.Permanent || !strings.Contains(err.Error(), "may not be sent") {
		t.Errorf("error %v, want a permanent refusal", err)
	}
	if stats := w.git.Stats("acme/widgets"); stats.InfoRefs != 0 {
		t.Errorf("the remote was asked %d times", stats.InfoRefs)
	}
}
