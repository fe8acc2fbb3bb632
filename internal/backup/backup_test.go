package backup

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/notify"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

const (
	namespace = events.DefaultNamespace
	prefix    = string(namespace)
)

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// single is a deployment without cells.
func single(client redis.UniversalClient) Deployment {
	return Deployment{Redis: client, Cells: cells.Single(client, cells.Member{Namespace: namespace}), Tokens: namespace}
}

func put(t *testing.T, client redis.UniversalClient, watches ...watch.Watch) {
	t.Helper()
	for i, w := range watches {
		watches[i] = must(watch.New(w))(t)
	}
	must(watch.NewRegistry(client, namespace).Put(t.Context(), watches...))(t)
}

func set(t *testing.T, client redis.UniversalClient, key string, fields ...string) {
	t.Helper()
	must(client.HSet(t.Context(), prefix+key, fields).Result())(t)
}

const (
	older = "1111111111111111111111111111111111111111"
	newer = "2222222222222222222222222222222222222222"
)

// fill stores watches, states and a token, whose secret it returns.
func fill(t *testing.T, client redis.UniversalClient) (secret string) {
	t.Helper()
	put(t, client,
		watch.Watch{App: "docs", URL: "https://git.example.com/Acme/Widgets.git"},
		watch.Watch{App: "docs", URL: "https://git.example.com/Acme/Widgets.git", Ref: must(watch.ParseSelector("refs/tags/v*"))(t), Poll: watch.Never},
		watch.Watch{App: "ci", URL: "https://git.example.com/acme/gadgets.git", Credential: "robot", NotifyURL: "https://ci.example.com/hook?a=b", NotifySecret: "signing"},
		watch.Watch{App: "ci", URL: "https://git.example.com/acme/never-synced.git"})
	set(t, client, "repo:acme/widgets", "repo", "Acme/Widgets", "url", "https://git.example.com/Acme/Widgets.git", "synced", "2026-11-23T10:00:00Z", "fence", "7",
		"head:refs/heads/main", newer, "given:refs/heads/main:docs", newer, "watched:refs/heads/main", "1", "asked:refs/heads/main:robot", "1-0 x y z",
		"chain:refs/heads/main", "- c1", "awaited", "{}", "tombstone", "1-0",
		"trouble", `{"all":{"credential:robot:docs":{"scope":"credential","app":"docs","credential":"robot"},"repo":{"scope":"repo","failures":3}}}`)
	set(t, client, "repo:acme/by-hand", "repo", "acme/by-hand", "synced", "2026-11-23T10:00:00Z", "head:refs/heads/main", older, "given:refs/heads/main:", older,
		"byhand:refs/heads/main", "1")
	set(t, client, "repo:acme/removed", "repo", "acme/removed", "tombstone", "1-0", "fence", "3")
	must(client.Set(t.Context(), prefix+"volume", "volume-1", 0).Result())(t)
	_, secret, err := access.NewTokens(client, namespace).Create(t.Context(), "docs")
	return must(secret, err)(t)
}

func export(t *testing.T, client redis.UniversalClient) string {
	t.Helper()
	return written(t, single(client))
}

// written returns the text of an export, which it checks.
func written(t *testing.T, from Deployment) string {
	t.Helper()
	var out bytes.Buffer
	must(0, must(Export(t.Context(), from, "v1"))(t).Write(&out))(t)
	must(Parse(out.Bytes()))(t)
	return out.String()
}

func restore(t *testing.T, client redis.UniversalClient, document string) Summary {
	t.Helper()
	return must(Import(t.Context(), single(client), must(Parse([]byte(document)))(t)))(t)
}

func wantSummary(t *testing.T, got, want Summary) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// body returns the values of a document after the header, sorted.
func body(document string) []string {
	lines := strings.Split(strings.TrimSpace(document), "\n")[1:]
	slices.Sort(lines)
	return lines
}

// dump returns all keys with their values.
func dump(t *testing.T, client redis.UniversalClient) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range must(client.Keys(t.Context(), "*").Result())(t) {
		switch must(client.Type(t.Context(), key).Result())(t) {
		case "hash":
			all[key] = fmt.Sprint(must(client.HGetAll(t.Context(), key).Result())(t))
		case "zset":
			all[key] = fmt.Sprint(must(client.ZRangeWithScores(t.Context(), key, 0, -1).Result())(t))
		case "stream":
			all[key] = fmt.Sprint(must(client.XRange(t.Context(), key, "-", "+").Result())(t))
		default:
			all[key] = must(client.Get(t.Context(), key).Result())(t)
		}
	}
	return all
}

func TestWhatIsImportedIsExportedTheSame(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t).Client(), redistest.Start(t).Client()
	secret := fill(t, from)
	document := export(t, from)
	for _, no := range []string{secret, "asked:", "chain:", "awaited", "fence", "failures", "tombstone", "acme/removed", "acme/by-hand"} {
		if strings.Contains(document, no) {
			t.Errorf("the document contains %q:\n%s", no, document)
		}
	}
	for _, want := range []string{"Acme/Widgets", `credential:robot:docs`, "hook?a=b"} {
		if !strings.Contains(document, want) {
			t.Errorf("the document lacks %q:\n%s", want, document)
		}
	}
	wantSummary(t, restore(t, to, document), Summary{Watches: 4, States: 1, Tokens: 1})
	if got, want := body(export(t, to)), body(document); !slices.Equal(got, want) {
		t.Errorf("exported again:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if app, ok, err := access.NewTokens(to, namespace).App(t.Context(), secret); app != "docs" || !ok || err != nil {
		t.Errorf("the token is of %q, %v, %v", app, ok, err)
	}
	if n := must(to.ZCard(t.Context(), prefix+"poll").Result())(t); n != 3 {
		t.Errorf("%d repositories are polled, want 3", n)
	}
	if n := must(to.XLen(t.Context(), prefix+"changes").Result())(t); n != 3 {
		t.Errorf("%d polls are queued, want one for each watched repository", n)
	}
	before := dump(t, to)
	wantSummary(t, restore(t, to, document), Summary{Unchanged: 5})
	if after := dump(t, to); !maps.Equal(before, after) {
		t.Errorf("a repeated import changes %v to %v", before, after)
	}
}

func TestWhatRedisHasStays(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t).Client(), redistest.Start(t).Client()
	fill(t, from)
	put(t, from, watch.Watch{App: "ci", URL: "https://git.example.com/x/y/z.git", Repo: path(t, "x/y/z")}, watch.Watch{App: "ci", URL: "https://git.example.com/up/per.git"})
	put(t, to, watch.Watch{App: "docs", URL: "https://git.example.com/Acme/Widgets.git", Depth: 5}, // differs
		watch.Watch{App: "ci", URL: "https://git.example.com/other/gadgets.git", Repo: path(t, "acme/gadgets")}, // another remote
		watch.Watch{App: "ci", URL: "https://git.example.com/x/y.git"}, watch.Watch{App: "ci", URL: "https://git.example.com/up/per/below.git"})
	set(t, to, "repo:acme/widgets", "repo", "acme/widgets", "head:refs/heads/main", older)
	summary := restore(t, to, export(t, from))
	var conflicts []string
	for _, text := range summary.Conflicts {
		repo, _, _ := strings.Cut(text, ": ")
		conflicts = append(conflicts, repo)
	}
	summary.Conflicts = nil
	wantSummary(t, summary, Summary{Watches: 2, Tokens: 1, Kept: []string{"Acme/Widgets docs"}})
	if want := []string{"acme/gadgets", "up/per", "x/y/z"}; !slices.Equal(conflicts, want) {
		t.Errorf("conflicts %q, want %q", conflicts, want)
	}
	if depth := must(watch.NewRegistry(to, namespace).Of(t.Context(), path(t, "acme/widgets")))(t).Watches[0].Depth; depth != 5 {
		t.Errorf("the existing watch was replaced: depth %v", depth)
	}
	if fields := must(to.HGetAll(t.Context(), prefix+"repo:acme/widgets").Result())(t); fields["head:refs/heads/main"] != older || len(fields) != 2 {
		t.Errorf("newer state was changed: %v", fields)
	}
}

func path(t *testing.T, text string) events.RepoPath {
	t.Helper()
	return must(events.ParseRepoPath(text))(t)
}

func TestDamagedAndNewerDocumentsAreRefused(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	fill(t, client)
	document := export(t, client)
	for at := range document {
		if _, err := Parse([]byte(document[:at])); err == nil && at < len(document)-1 {
			t.Fatalf("a document that ends after %d of %d bytes is accepted", at, len(document))
		}
	}
	header, rest, _ := strings.Cut(document, "\n")
	gadgets := `"repo":"acme/gadgets","watches"`
	for name, tc := range map[string]struct{ document, want string }{
		"empty":                     {"", "not a document of lockstep export"},
		"not JSON":                  {"watches:\n  - app: docs\n", "not a document of lockstep export"},
		"compressed":                {"\x1f\x8b\x08", "uncompress it"},
		"another kind of document":  {"{}\n", "not a document of lockstep export"},
		"a list":                    {"[]\n", "not a document of lockstep export"},
		"another format":            {strings.Replace(document, `{"lockstep_export":1,"version":"v1"`, `{"lockstep_export":3,"version":"v9","new":1`, 1), "the document has format 3, and this version reads 1; import with the version that wrote it (v9)"},
		"two documents":             {document + document, "more follows the end of the document"},
		"only the header":           {header + "\n", ErrIncomplete.Error()},
		"unknown value":             {header + "\n" + strings.Replace(rest, `"token":`, `"weight":1,"token":`, 1), `unknown field "weight"`},
		"unknown rule of a watch":   {strings.Replace(document, `"credential":"robot"`, `"credential":"robot","approve":"two"`, 1), `unknown field "approve"`},
		"a token in clear":          {strings.Replace(document, `"token":"`, `"token":"lockstep_`, 1), "want a SHA-256 hash"},
		"a watch of another path":   {strings.Replace(document, gadgets, `"repo":"acme/other","watches"`, 1), "acme/other: watch 1: it is of acme/gadgets"},
		"a cell that is not listed": {strings.Replace(document, gadgets, `"repo":"acme/gadgets","cell":"eu-9","watches"`, 1), `acme/gadgets: its cell "eu-9" is not in the header`},
		"a path outside":            {strings.Replace(document, gadgets, `"repo":"../gadgets","watches"`, 1), "repository path"},
	} {
		if _, err := Parse([]byte(tc.document)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// result adds a result to the stream.
func result(t *testing.T, client redis.UniversalClient, r events.Result) {
	t.Helper()
	payload := must(r.MarshalJSON())(t)
	must(client.XAdd(t.Context(), &redis.XAddArgs{Stream: prefix + "results", Values: []any{"payload", payload}}).Result())(t)
}

func TestResultsThatWereNotAcknowledgedAreExportedToBeRepeated(t *testing.T) {
	t.Parallel()
	from := redistest.Start(t).Client()
	ctx := t.Context()
	main := must(events.ParseRef("main"))(t)
	for _, app := range []string{"done", "late", "first", "posted"} {
		repo := path(t, "acme/"+app)
		put(t, from, watch.Watch{App: app, URL: "https://git.example.com/acme/" + app, NotifyURL: "https://app.example.com", NotifySecret: "s"})
		set(t, from, "repo:acme/"+app, "repo", repo.String(), "synced", "2026-11-23T10:00:00Z", "head:refs/heads/main", newer, "given:refs/heads/main:"+app, newer+" 1-a")
	}
	synced := func(app, before, after string) events.Result {
		return events.Result{ID: app, Type: events.ResultSynced, Source: "/test", Repo: path(t, "acme/"+app), App: app, Ref: main, Before: before, After: after, Path: "acme/" + app, Tree: "t"}
	}
	result(t, from, synced("done", older, newer))
	for _, group := range []string{"consumers", notify.Group} {
		must(from.XGroupCreate(ctx, prefix+"results", group, "$").Result())(t)
	}
	result(t, from, synced("late", older, "3333333333333333333333333333333333333333"))
	result(t, from, synced("late", "3333333333333333333333333333333333333333", newer))
	result(t, from, synced("first", "", newer))
	posted := must(synced("posted", older, newer).MarshalJSON())(t)
	must(from.RPush(ctx, prefix+"notify:box:posted acme/posted", fmt.Sprintf(`7 {"app":"posted","repo":"acme/posted","payload":%q}`, posted)).Result())(t)
	must(from.HSet(ctx, prefix+"notify:counts", "posted", 1).Result())(t)

	to := redistest.Start(t).Client()
	restore(t, to, export(t, from))
	for app, want := range map[string]string{"done": newer + " 1-a", "late": newer + " -", "first": newer + " -", "posted": newer + " -"} {
		if given := must(to.HGet(ctx, prefix+"repo:acme/"+app, "given:refs/heads/main:"+app).Result())(t); given != want {
			t.Errorf("%s was given %q, want %q", app, given, want)
		}
	}
	again := redistest.Start(t).Client()
	restore(t, again, export(t, to))
	if given := must(again.HGet(ctx, prefix+"repo:acme/late", "given:refs/heads/main:late").Result())(t); given != newer+" -" {
		t.Errorf("exported before it was repeated: %q", given)
	}
}

// An app that does not know of a removal or a move has received nothing of what is there now.
func TestRemovalThatWasNotAcknowledgedIsExportedAsNothingReceived(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t).Client(), redistest.Start(t).Client()
	ctx := t.Context()
	must(from.XGroupCreateMkStream(ctx, prefix+"results", "consumers", "$").Result())(t)
	result(t, from, events.Result{ID: "1", Type: events.ResultRemoved, Source: "/test", Repo: path(t, "acme/back")})
	put(t, from, watch.Watch{App: "docs", URL: "https://git.example.com/acme/back.git"})
	set(t, from, "repo:acme/back", "repo", "acme/back", "synced", "2026-11-23T10:00:00Z", "head:refs/heads/main", newer, "given:refs/heads/main:docs", newer)
	restore(t, to, export(t, from))
	if given := must(to.HGet(ctx, prefix+"repo:acme/back", "given:refs/heads/main:docs").Result())(t); given != newer+" -" {
		t.Errorf("imported as given %q", given)
	}
}

// A repository without watches, whose state would make workers remove it, is left out; the others are imported.
func TestRepositoryWithoutWatchesIsSkipped(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t).Client(), redistest.Start(t).Client()
	fill(t, from)
	doc := must(Export(t.Context(), single(from), "v1"))(t)
	doc.Repos = append([]Repository{{Repo: path(t, "acme/bare"), State: map[string]string{"synced": "2026-11-23T10:00:00Z"}}}, doc.Repos...)
	into, steps := single(to), 0
	into.Progress = func(_ events.RepoPath, done, total int) {
		if done != steps || total != len(doc.Repos) {
			t.Errorf("%d of %d repositories are done, want %d of %d", done, total, steps, len(doc.Repos))
		}
		steps++
	}
	wantSummary(t, must(Import(t.Context(), into, doc))(t), Summary{Watches: 4, States: 1, Tokens: 1})
	if steps != len(doc.Repos) {
		t.Errorf("%d steps for %d repositories", steps, len(doc.Repos))
	}
}

func TestWatchThatCannotBeDecodedIsNotLeftOutSilently(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	fill(t, client)
	set(t, client, "watch:of:acme/gadgets", "ci main", "{")
	if _, err := Export(t.Context(), single(client), ""); err == nil || !strings.Contains(err.Error(), `watch of acme/gadgets by app "ci"`) {
		t.Errorf("export: %v", err)
	}
}

// TestStateIsThereBeforeTheWatch looks before each command of an import what a worker would see.
func TestStateIsThereBeforeTheWatch(t *testing.T) {
	from, server := redistest.Start(t).Client(), redistest.Start(t)
	fill(t, from)
	seen := false
	client := server.Client()
	client.AddHook(before(func() {
		looks := server.Client()
		watched := must(watch.NewRegistry(looks, namespace).AreWatched(t.Context(), []events.RepoPath{must(events.ParseRepoPath("acme/widgets"))(t)}))(t)
		given := looks.HGet(t.Context(), prefix+"repo:acme/widgets", "given:refs/heads/main:docs").Val()
		if seen = seen || watched[0]; watched[0] && given != newer {
			t.Errorf("it is watched, and docs was given %q", given)
		}
	}))
	wantSummary(t, restore(t, client, export(t, from)), Summary{Watches: 4, States: 1, Tokens: 1})
	if !seen {
		t.Error("no command came after the watch")
	}
}

// before is a hook that runs before each command.
type before func()

func (f before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f()
		return next(ctx, cmd)
	}
}

func (f before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f()
		return next(ctx, cmds)
	}
}
