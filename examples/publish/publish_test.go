package publish_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// way is a way to publish a change.
type way struct {
	name    string
	plain   bool // as plain fields instead of a CloudEvents document
	waits   bool // it waits for the result and prints it
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

// repo is the repository for a way.
func (way way) repo() string {
	return "acme/" + regexp.MustCompile(`\W+`).ReplaceAllString(strings.ToLower(way.name), "-")
}

var published = regexp.MustCompile(`(?m)^published (?:change )?(\S+)`)

// A worker handles each program's change; the program prints its ID and its result.
func TestPublishers(t *testing.T) {
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
			if said := published.FindStringSubmatch(stdout); said != nil {
				id = said[1]
			}
			result := w.results(t, id, 1)[0]
			if result.Type != events.ResultSynced || result.After != commit || result.Repo.String() != repo {
				t.Errorf("%s of %s at %q (%s), want it synced at %s", result.Type, result.Repo, result.After, result.Error, commit)
			}
			for _, tree := range []string{result.Tree, repo} {
				if got, err := os.ReadFile(filepath.Join(w.root, tree, "README")); string(got) != way.name {
					t.Errorf("in %s is %q, %v", tree, got, err)
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
func TestPublisherWaitReportsFailure(t *testing.T) {
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

// noGroupIsLeft checks that no consumer group keeps results for a program that has ended.
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

// If it is unknown whether a change arrived, publishing it again is safe and has a result.
func TestPublishSameIDTwice(t *testing.T) {
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

// A malformed change becomes a dead letter with the reason, and does not delay others.
func TestMalformedFieldsBecomeDeadLetter(t *testing.T) {
	w := newWorld(t)
	_, err := w.git.Create(t.Context(), "acme/widgets", map[string]string{"README": "1"})
	must(t, err)
	for _, tc := range []struct {
		reason, text string
		fields       []string
	}{
		{"malformed", "url is missing", []string{"repo", "acme/widgets"}},
		{"malformed", "url carries credentials; name a credential instead", []string{"url", "https://robot:hunter2@git.example.com/acme/widgets"}},
		{"malformed", "url does not parse", []string{"url", "git@git.example.com:acme/widgets", "repo", "acme/widgets"}},
		{"malformed", `not a repository path: "../etc"`, []string{"url", "https://git.example.com/acme/widgets", "repo", "../etc"}},
		{"malformed", `on_busy "shrug": want wait or skip`, []string{"url", "https://git.example.com/acme/widgets", "on_busy", "shrug"}},
		{"malformed", "neither a CloudEvents document nor plain fields", []string{"_watermill_message_uuid", "1", "payload", "{"}},
		{"undecodable", "no payload", []string{"_watermill_message_uuid", "1"}},
		{"undecodable", `field "url" is not text`, []string{"url", "\xff"}},
	} {
		entry := w.add(t, tc.fields...)
		letter := w.letterOf(t, entry)
		if text, _ := letter["error"].(string); letter["reason"] != tc.reason || !strings.Contains(text, tc.text) {
			t.Errorf("%q: letter %q, want %s: %s", tc.fields, letter, tc.reason, tc.text)
		}
		if name := tc.fields[0]; letter["original:"+name] != tc.fields[1] {
			t.Errorf("%q: letter %q, want the fields as they were", tc.fields, letter)
		}
	}
	w.add(t, "id", "next", "url", w.git.URL("acme/widgets"), "a_field_added_later", "true")
	if result := w.results(t, "next", 1)[0]; result.Type != events.ResultSynced {
		t.Errorf("the next change: %s, %s", result.Type, result.Error)
	}
	entries, err := w.client.XRange(t.Context(), events.DefaultNamespace.Results(), "-", "+").Result()
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("%d results, want that of the next change alone", len(entries))
	}
}

func (w *world) add(t *testing.T, fields ...string) (entry string) {
	t.Helper()
	entry, err := w.client.XAdd(t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: fields}).Result()
	must(t, err)
	return entry
}

// letterOf waits for the dead letter of an entry.
func (w *world) letterOf(t *testing.T, entry string) map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.alive, patience)
	defer cancel()
	for from := "0-0"; ctx.Err() == nil; {
		read, err := w.client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Dead(), from}, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) || ctx.Err() != nil {
			continue
		}
		must(t, err)
		for _, letter := range read[0].Messages {
			from = letter.ID
			if letter.Values["entry"] == entry {
				return letter.Values
			}
		}
	}
	t.Fatalf("entry %s is no dead letter: %v", entry, context.Cause(ctx))
	return nil
}
