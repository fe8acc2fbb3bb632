package publish_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// way is a way to publish a change.
type way struct {
	name    string
	plain   bool // plain fields instead of a CloudEvents document
	waits   bool // waits for the result and prints it
	command func(t *testing.T, url, repo string) []string
}

// ways are the ways in docs/publishing.md.
var ways = []way{
	{"redis-cli", true, false, func(t *testing.T, url, repo string) []string {
		redisCLI(t)
		return []string{"sh", "shell/xadd.sh", url, "id-of-" + repo}
	}},
	{"redis-cli that waits", true, true, func(t *testing.T, url, _ string) []string {
		redisCLI(t)
		return []string{"sh", "shell/publish.sh", url}
	}},
	{"lockstep publish", false, false, func(_ *testing.T, url, _ string) []string {
		return []string{filepath.Join(built, "lockstep"), "publish", url, "--ref", "main"}
	}},
	{"lockstep publish that waits", false, true, func(_ *testing.T, url, _ string) []string {
		return []string{"sh", "shell/lockstep.sh", url}
	}},
	{"Go, plain fields", true, true, func(_ *testing.T, url, _ string) []string {
		return []string{filepath.Join(built, "fields"), url}
	}},
	{"Go, Watermill", false, true, func(_ *testing.T, url, repo string) []string {
		return []string{filepath.Join(built, "watermill"), url, repo}
	}},
	{"Node, plain fields", true, true, func(t *testing.T, url, repo string) []string {
		return []string{"node", node(t), url, repo}
	}},
	{"Node, CloudEvents", false, true, func(t *testing.T, url, repo string) []string {
		return []string{"node", node(t), url, repo, "cloudevent"}
	}},
	{"Python, plain fields", true, true, func(t *testing.T, url, repo string) []string {
		return []string{python(t), "python/publish.py", url, repo}
	}},
	{"Python, CloudEvents", false, true, func(t *testing.T, url, repo string) []string {
		return []string{python(t), "python/publish.py", url, repo, "cloudevent"}
	}},
}

// repo returns a different repository for each way.
func (way way) repo() string {
	return "acme/" + regexp.MustCompile(`\W+`).ReplaceAllString(strings.ToLower(way.name), "-")
}

var published = regexp.MustCompile(`(?m)^published (?:change )?(\S+)`)

// Each program's change is synced, and the program prints its ID and result.
func TestEachWayToPublish(t *testing.T) {
	w := newWorld(t)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			repo := way.repo()
			commit, err := w.git.Create(t.Context(), repo, map[string]string{"README": way.name})
			must(t, err)
			command := way.command(t, w.git.URL(repo), repo)
			stdout, stderr, code := w.run(t, command)
			if code != 0 {
				t.Fatalf("%q: exit code %d\n%s%s", command, code, stdout, stderr)
			}
			id := "id-of-" + repo // passed to redis-cli, which does not print it
			if match := published.FindStringSubmatch(stdout); match != nil {
				id = match[1]
			}
			result := w.results(t, id, 1)[0]
			if result.Type != events.ResultSynced || result.After != commit || result.Repo.String() != repo {
				t.Errorf("%s of %s at %q (%s), want it synced at %s", result.Type, result.Repo, result.After, result.Error, commit)
			}
			for _, tree := range []string{result.Tree, repo} {
				if got, err := os.ReadFile(filepath.Join(w.root, tree, "README")); string(got) != way.name {
					t.Errorf("%s contains %q, %v", tree, got, err)
				}
			}
			if way.waits && (!strings.Contains(stdout, commit) || !strings.Contains(stdout, result.Tree)) {
				t.Errorf("it printed %q, want commit %s and tree %s", stdout, commit, result.Tree)
			}
			change, plain := w.change(t, id)
			if change.URL != w.git.URL(repo) || change.Repo.String() != repo || change.Ref.String() != "refs/heads/main" || plain != way.plain {
				t.Errorf("published as %+v, as plain fields: %v", change, plain)
			}
		})
	}
	w.noGroupIsLeft(t)
}

// A program whose change fails prints the reason and exits with code 1.
func TestEachWayReportsAFailure(t *testing.T) {
	w := newWorld(t)
	for _, way := range ways {
		if !way.waits {
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			stdout, stderr, code := w.run(t, way.command(t, w.git.URL(way.repo()), way.repo()))
			if code != 1 || !strings.Contains(stdout+stderr, "has no such repository") {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
		})
	}
	w.noGroupIsLeft(t)
}

// noGroupIsLeft checks that no program has left a consumer group behind.
func (w *world) noGroupIsLeft(t *testing.T) {
	t.Helper()
	groups, err := w.client.XInfoGroups(t.Context(), events.DefaultNamespace.Results()).Result()
	must(t, err)
	for _, group := range groups {
		if strings.HasPrefix(group.Name, "publish-") {
			t.Errorf("group %s is left over", group.Name)
		}
	}
}

// A change may be published again with the same ID, and gets another result.
func TestIDMayBePublishedTwice(t *testing.T) {
	w := newWorld(t)
	commit, err := w.git.Create(t.Context(), "acme/widgets", map[string]string{"README": "1"})
	must(t, err)
	for range 2 {
		w.add(t, "id", "push-4711", "url", w.git.URL("acme/widgets"))
	}
	for _, result := range w.results(t, "push-4711", 2) {
		if result.Type != events.ResultSynced || result.After != commit {
			t.Errorf("%s at %s: %s", result.Type, result.After, result.Error)
		}
	}
}

func (w *world) add(t *testing.T, fields ...string) (entry string) {
	t.Helper()
	entry, err := w.client.XAdd(t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: fields}).Result()
	must(t, err)
	return entry
}

// Each redis-cli line in the document is a valid change, and together they cover every type. The CloudEvents document is
// valid, too.
func TestDocumentedChangesAreValid(t *testing.T) {
	document, err := os.ReadFile("../../docs/publishing.md")
	must(t, err)
	var types []events.ChangeType
	for _, line := range regexp.MustCompile(`(?m)^    redis-cli XADD 'lockstep:\{0\}:changes' '\*' (.*)$`).FindAllStringSubmatch(string(document), -1) {
		words, fields := strings.Fields(line[1]), map[string]string{}
		for pair := range slices.Chunk(words, 2) {
			fields[pair[0]] = pair[1]
		}
		plain, err := json.Marshal(fields)
		must(t, err)
		change, err := events.ParseChange(plain)
		if err != nil {
			t.Errorf("%s: %v", line[1], err)
		}
		types = append(types, change.Type)
	}
	if want := []events.ChangeType{events.ChangePushed, events.ChangeRemoved, events.ChangeMoved, events.ChangeDue}; !slices.Equal(types, want) {
		t.Errorf("types %q, want %q", types, want)
	}
	cloudEvent := regexp.MustCompile(`(?m)^    (\{"specversion".*\n.*)$`).FindStringSubmatch(string(document))
	if cloudEvent == nil {
		t.Fatal("no CloudEvents document")
	}
	if change, err := events.ParseChange([]byte(cloudEvent[1])); err != nil || change.ID != "push-4711" {
		t.Errorf("%+v, %v", change, err)
	}
}
