package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/hosts"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
)

// TestServersThatRefuseCommits fetches a commit that no ref of an old server points to.
func TestServersThatRefuseCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.git.IgnoreVersion(true)
	w.simple()
	w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "2"}})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("in the history of the default branch")
	old := w.git.Head("acme/lib", "refs/heads/main")
	testenv.Must(0, w.git.SetRef(t.Context(), "acme/lib", "refs/heads/old", old))(t)
	w.commitAt("acme/lib", gitserver.Edit{Orphan: true, Write: map[string]string{"l": "other"}})
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": old}})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("at another branch")
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": anID("ab")}})
	_, err := w.trySyncParts(events.SubmodulesRequired)
	testenv.MustFail(t, err, events.ClassNotFound, events.Retryable)
}

func TestOddSubmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.createAt("acme/lib", map[string]string{"l": "1"})
	none := testenv.Must(w.git.Git(t.Context(), "acme/lib", "", "mktree"))(t)
	empty := testenv.Must(w.git.CommitTree(t.Context(), "acme/lib", "empty", none))(t)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	urls := map[string]string{"sub": "../lib.git", "empty": "../lib.git", "skip": "../none.git", "none": "../none.git", "with space/é": "../lib.git/"}
	file := gitmodules(urls) + "[submodule \"skip\"]\n\tupdate = none\n"
	w.commitAt(widgets, gitserver.Edit{
		Write:     map[string]string{".gitmodules": file},
		Submodule: map[string]string{"sub": lib, "empty": empty, "skip": lib, "with space/é": lib},
	})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("odd")
	for range 2 {
		w.prepare()
		w.push(map[string]string{"a": fmt.Sprint(rand.Int())})
		w.syncParts(events.SubmodulesRequired)
		w.mustBeAsCloned("odd, the next")
	}
	w.commitAt(widgets, gitserver.Edit{Delete: []string{".gitmodules"}, Link: map[string]string{".gitmodulesx": "a"}, Submodule: map[string]string{"\xff": lib}})
	if res := w.syncParts(events.SubmodulesRequired); len(res.Missing) > 0 {
		t.Errorf("missing %+v, want none without .gitmodules", res.Missing)
	}
	w.mustBeAsCloned("without .gitmodules")
	tag := testenv.Must(w.git.Git(t.Context(), "acme/lib", "", "rev-parse", "HEAD^{tree}"))(t)
	w.commitAt(widgets, gitserver.Edit{Delete: []string{"\xff", "empty", "skip", "with space"}, Write: map[string]string{".gitmodules": gitmodules(urls)}, Submodule: map[string]string{"sub": tag}})
	if res := w.syncParts(events.SubmodulesBestEffort); len(res.Missing) != 1 {
		t.Errorf("missing %+v, want the one that is a tree", res.Missing)
	}
	w.mustVerify()
}

// TestOddGitmodules has all that Git's configuration syntax allows, and a repository that is its own submodule.
func TestOddGitmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.createAt("acme/lib", map[string]string{"l": "1"})
	testenv.Must(0, w.git.SetHead("acme/lib", "missing"))(t)
	self := w.create(map[string]string{"a": "1"})
	file := "\xef\xbb\xbf[Submodule \"A \\\"b\\\"\"]\r\n\tPATH = \"a b \"\r\n\tURL = ../lib.git\r\n; [submodule \"x\"]\n[submodule.old]path=old;c\nurl=\"../li\"b.git # comment\n" +
		"[submodule \"self\"]\n\tpath = se\\\nlf\n[submodule \"self\"]\n\turl = ./\n\tshallow\n[core]\n\tpath = x\n"
	w.commitAt(widgets, gitserver.Edit{Write: map[string]string{".gitmodules": file}, Submodule: map[string]string{"a b ": lib, "old": lib, "self": self}})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("odd .gitmodules")
}

// TestNestedSubmodulesAreBounded nests one level too many.
func TestNestedSubmodulesAreBounded(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	commit := w.createAt("acme/l0", map[string]string{"f": "0"})
	level := func(n int) {
		repo := fmt.Sprintf("acme/l%d", n)
		testenv.Must(0, w.git.CreateEmpty(t.Context(), repo))(t)
		commit = w.withParts(repo, map[string]string{"s": commit}, map[string]string{"s": fmt.Sprintf("../l%d.git", n-1)}, nil)
	}
	for n := range maxPartDepth - 1 {
		level(n + 1)
	}
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"s": commit}, map[string]string{"s": fmt.Sprintf("../l%d.git", maxPartDepth-1)}, nil)
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("as deep as possible")
	level(maxPartDepth)
	w.withParts(widgets, map[string]string{"s": commit}, map[string]string{"s": fmt.Sprintf("../l%d.git", maxPartDepth)}, nil)
	_, err := w.trySyncParts(events.SubmodulesRequired)
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	res := w.syncParts(events.SubmodulesBestEffort)
	if len(res.Missing) != 1 || res.Missing[0].Path != strings.Repeat("s/", maxPartDepth)+"s" {
		t.Errorf("missing %+v", res.Missing)
	}
	w.mustVerify()
}

// TestTooManySubmodules nests so that there are too many in all, although each repository has few.
func TestTooManySubmodules(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	w := newWorld(t)
	leaf := w.createAt("acme/l0", map[string]string{"f": "0"})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	many := map[string]string{}
	urls := map[string]string{}
	for i := range 40 {
		many[fmt.Sprint(i)], urls[fmt.Sprint(i)] = leaf, "../l0.git"
	}
	testenv.Must(0, w.git.CreateEmpty(t.Context(), "acme/many"))(t)
	inner := w.withParts("acme/many", many, urls, nil)
	for i := range 40 {
		many[fmt.Sprint(i)], urls[fmt.Sprint(i)] = inner, "../many.git"
	}
	w.withParts(widgets, many, urls, nil)
	for _, mode := range []events.Submodules{events.SubmodulesRequired, events.SubmodulesBestEffort} {
		_, err := w.trySyncParts(mode)
		testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	}
	if n := w.uploads("acme/many"); n != 1 {
		t.Errorf("%d fetches of a commit", n)
	}
}

func TestSubmoduleLimits(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"files":      {MaxTreeFiles: 5},
		"bytes":      {MaxTreeBytes: 1000},
		"one file":   {MaxFileBytes: 1000},
		"pack":       {MaxPackBytes: 1000},
		"repository": {MaxRepoBytes: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), cfg)
			files := map[string]string{}
			for i := range 4 {
				text := make([]byte, 400<<10)
				for j := range text {
					text[j] = byte(rand.IntN(256))
				}
				files[fmt.Sprint(i)] = string(text)
			}
			lib := w.createAt("acme/lib", files)
			w.create(map[string]string{"a": "1"})
			w.syncParts(events.SubmodulesRequired)
			w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": "../lib.git"}, nil)
			_, err := w.trySyncParts(events.SubmodulesRequired)
			testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
			w.mustRead(widgets, map[string]string{"a": "1"})
			if name != "repository" { // for a minute, it counts as too large
				w.syncParts(events.SubmodulesOff)
			}
		})
	}
}

// TestLinksOfSubmodules has links in a submodule, and links of the repository through it, that lead out of the tree.
func TestLinksOfSubmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), "acme/lib"))(t)
	lib := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"f": "1"}, Link: map[string]string{"up": "../a", "out": "../../x", "dir": "../.."}})
	safe := w.commitAt("acme/lib", gitserver.Edit{Delete: []string{"out", "dir"}})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.commitAt(widgets, gitserver.Edit{
		Write: map[string]string{"a": "1", ".gitmodules": gitmodules(map[string]string{"sub": "../lib.git"})}, Submodule: map[string]string{"sub": safe},
		Link: map[string]string{"through": "sub/dir/x", "into": "sub/f"},
	})
	has := func(paths ...string) {
		t.Helper()
		got := treeWithModes(t, w.path(widgets))
		delete(got, ".gitmodules")
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, paths) {
			t.Errorf("the tree has %q, want %q", names, paths)
		}
		w.mustVerify()
	}
	w.volume = w.open(t.TempDir(), Config{Links: checkout.LinksSkip})
	w.syncParts(events.SubmodulesRequired)
	has("a", "into", "sub/f", "sub/up", "through")
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": lib}})
	w.syncParts(events.SubmodulesRequired)
	has("a", "into", "sub/f", "sub/up")
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": safe}})
	w.syncParts(events.SubmodulesRequired)
	has("a", "into", "sub/f", "sub/up", "through")

	w.volume = w.open(t.TempDir(), Config{Links: checkout.LinksRefuse})
	w.syncParts(events.SubmodulesRequired)
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": lib}})
	_, err := w.trySyncParts(events.SubmodulesRequired)
	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
	has("a", "into", "sub/f", "sub/up", "through")

	w.volume = w.open(t.TempDir(), Config{})
	w.syncParts(events.SubmodulesRequired)
	w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"new": "sub/dir/x", "inside": "sub/up"}})
	res := w.syncParts(events.SubmodulesRequired)
	views := ViewsRequest{
		Repo: repoPath(t, widgets), Commit: res.After, Tree: res.Tree, Base: res.Before, Views: testenv.Must(view.New(map[string][]string{"all": {"**"}}))(t),
		Subtrees: func(context.Context) (map[string]string, error) { return nil, nil },
	}
	listed := func(files []events.File) {
		t.Helper()
		for _, file := range files {
			if file.Outside != (file.Path == "new") {
				t.Errorf("%+v", file)
			}
		}
	}
	listed(res.Files)
	listed(testenv.Must(w.volume.Views(t.Context(), views))(t)[0].Files)

	for _, part := range w.parts() { // without the top folder
		pack := one(t, part, "objects/pack/*.pack")
		content := testenv.Must(os.ReadFile(pack))(t)
		testenv.Must(0, os.RemoveAll(filepath.Dir(pack)))(t)
		testenv.Must(gitserver.Git(t.Context(), part, string(content), "unpack-objects", "-q"))(t)
		id := testenv.Must(gitserver.Git(t.Context(), part, "", "rev-parse", part[len(part)-len(res.After):]+"^{tree}"))(t)
		testenv.Must(0, os.Remove(filepath.Join(part, "objects", id[:2], id[2:])))(t)
	}
	_, err = w.volume.Views(t.Context(), views)
	testenv.MustFail(t, err, events.ClassCorrupt, events.Retryable)
	again := w.requestParts(events.SubmodulesRequired)
	again.Refetch = true
	testenv.Must(w.volume.Sync(t.Context(), again))(t)
	listed(testenv.Must(w.volume.Views(t.Context(), views))(t)[0].Files)
	w.mustVerify()
}

// TestHashOfZeros has a submodule without a commit, which git cannot check out.
func TestHashOfZeros(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.simple()
	file := testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", "main:.gitmodules"))(t)
	entries := fmt.Sprintf("100644 blob %s\t.gitmodules\n160000 commit %s\tsub\n", strings.TrimSpace(file), anID("00"))
	tree := testenv.Must(w.git.Git(t.Context(), widgets, entries, "mktree", "--missing"))(t)
	testenv.Must(w.git.CommitTree(t.Context(), widgets, gitserver.Main, strings.TrimSpace(tree)))(t)
	_, err := w.trySyncParts(events.SubmodulesRequired)
	testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
	if res := w.syncParts(events.SubmodulesBestEffort); len(res.Missing) != 1 || res.Missing[0].Path != "sub" {
		t.Errorf("missing %+v", res.Missing)
	}
	w.mustVerify()
}

// TestSubmodulesThatHaveTooManyFilesTogether has three, two of which are too much.
func TestSubmodulesThatHaveTooManyFilesTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{MaxTreeFiles: 10})
	files := map[string]string{}
	for i := range 6 {
		files[fmt.Sprint(i)] = "1"
	}
	commits, urls := map[string]string{}, map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		commits[name], urls[name] = w.createAt("acme/"+name, files), "../"+name+".git"
	}
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, commits, urls, nil)
	for _, mode := range []events.Submodules{events.SubmodulesRequired, events.SubmodulesBestEffort} {
		req := w.requestParts(mode)
		_, err := w.volume.Sync(t.Context(), req)
		testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	}
}

// refusing refuses the requests to a host.
func refusing(host string, err error) *requestLog {
	return &requestLog{refuse: func(name string, _ int) error {
		if name == host {
			return err
		}
		return nil
	}}
}

// TestBestEffortDoesNotWaitForOtherHosts has the host of a submodule not answer, or tell to wait.
func TestBestEffortDoesNotWaitForOtherHosts(t *testing.T) {
	t.Parallel()
	wait := func(err error) error {
		return &events.Error{Disposition: events.Contention, Class: events.ClassBusy, RetryAfter: time.Hour, Err: err}
	}
	for name, tc := range map[string]struct {
		refusal error
		status  int
		own     bool         // the submodule is at the repository's host
		class   events.Class // of the missing submodule; "" if the sync waits
	}{
		"no answer":               {refusal: wait(events.Errorf(events.Retryable, events.ClassNetwork, "no answer")), class: events.ClassNetwork},
		"a rate limit":            {refusal: wait(events.Errorf(events.Retryable, events.ClassBusy, "a rate limit")), class: events.ClassBusy},
		"its answer":              {status: 429, class: events.ClassBusy},
		"its answer, of own host": {status: 429, own: true},
		"our limit":               {refusal: wait(errors.New("our limit"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"127.0.0.1", "localhost"}}})
			lib := w.createAt("acme/lib", map[string]string{"l": "1"})
			testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
			url := w.git.URL("acme/lib")
			if !tc.own {
				url = strings.Replace(url, "127.0.0.1", "localhost", 1)
			}
			w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": url}, nil)
			w.git.Answer("acme/lib", tc.status)
			sync := func(mode events.Submodules) (SyncResult, error) {
				req := w.requestParts(mode)
				req.Limiter = &requestLog{}
				if !tc.own {
					req.Limiter = refusing(events.CanonicalHost(url), tc.refusal)
				}
				return w.volume.Sync(t.Context(), req)
			}
			_, err := sync(events.SubmodulesRequired)
			testenv.MustFail(t, err, events.ClassBusy, events.Contention)
			res, err := sync(events.SubmodulesBestEffort)
			if tc.class == "" {
				testenv.MustFail(t, err, events.ClassBusy, events.Contention)
				return
			}
			if err != nil || len(res.Missing) != 1 || res.Missing[0].Class != tc.class {
				t.Errorf("%v, missing %+v, want class %s", err, res.Missing, tc.class)
			}
			published, _, err := w.volume.Published(repoPath(t, widgets))
			if err != nil || !published.Incomplete[testenv.Must(events.ParseRef(gitserver.Main))(t)] {
				t.Errorf("published %+v, %v", published, err)
			}
		})
	}
}

// TestAHostThatDoesNotAnswerIsAskedSeldom has many submodules at one.
func TestAHostThatDoesNotAnswerIsAskedSeldom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.createAt("acme/lib", map[string]string{"l": "1"})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
	commits, urls := map[string]string{"z": lib}, map[string]string{"z": "../lib.git"}
	for i := range 20 {
		path := fmt.Sprint(i)
		commits[path], urls[path] = lib, "http://127.0.0.1:1/acme/"+path+".git"
	}
	w.withParts(widgets, commits, urls, nil)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer away.Close()
	var failed atomic.Int32
	limiter := testenv.Must(hosts.New(hosts.Config{
		Redis: away, Prefix: "lockstep:{0}:",
		Observe: func(_ string, o hosts.Outcome, _ hosts.Reason) {
			if o == hosts.Failed {
				failed.Add(1)
			}
		},
	}))(t)
	job := limiter.Job(widgets, false)
	defer job.Leave(t.Context())
	req := w.requestParts(events.SubmodulesBestEffort)
	req.Limiter = job.With("")
	res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if n := failed.Load(); len(res.Missing) != 20 || n > 5 {
		t.Errorf("%d are missing after %d requests", len(res.Missing), n)
	}
	for _, part := range res.Missing {
		if events.Class(part.Class) != events.ClassNetwork {
			t.Errorf("missing: %+v", part)
		}
	}
	w.mustVerify()
}

// TestVolumeFillsWhileSubmodulesAreFetched has no space left after the first one.
func TestVolumeFillsWhileSubmodulesAreFetched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := w.createAt("acme/inner", map[string]string{"f": "1"}) // fetched when the outer one has been read
	testenv.Must(0, w.git.CreateEmpty(t.Context(), "acme/outer"))(t)
	outer := w.withParts("acme/outer", map[string]string{"inner": inner}, map[string]string{"inner": "../inner.git"}, nil)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"outer": outer}, map[string]string{"outer": "../outer.git"}, nil)
	w.volume.cfg.Step = func(at string) {
		if at == "part" {
			w.volume.cfg.MinFreeBytes = math.MaxInt64
		}
	}
	_, err := w.trySyncParts(events.SubmodulesBestEffort)
	testenv.MustFail(t, err, events.ClassQuota, events.Retryable)
	if n := w.uploads("acme/inner"); n > 0 {
		t.Errorf("%d fetches without space", n)
	}
}
