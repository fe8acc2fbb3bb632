package volume

import (
	"os"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// allowHashes lets the server send reachable commits by their hash over protocol version 0, which it is limited to.
func (w *world) allowHashes() {
	w.t.Helper()
	w.git.IgnoreVersion(true)
	testenv.Must(w.git.Git(w.t.Context(), widgets, "", "config", "uploadpack.allowReachableSHA1InWant", "true"))(w.t)
}

func (w *world) pin(ref, commit string, depth events.Depth) (SyncResult, error) {
	w.t.Helper()
	req := w.request(ref)
	req.Pin, req.Depth = commit, depth
	return w.volume.Sync(w.t.Context(), req)
}

func TestCommitByItsHash(t *testing.T) {
	t.Parallel()
	for name, arrange := range map[string]func(*world){"protocol 0": (*world).allowHashes, "protocol 2": func(*world) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCommitByItsHash(t, arrange)
		})
	}
}

func testCommitByItsHash(t *testing.T, arrange func(*world)) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	second := w.push(map[string]string{"a": "2"})
	w.push(map[string]string{"a": "3"})
	arrange(w)

	res := w.sync(strings.ToUpper(first))
	if res.Path != widgets+"@"+first || res.Ref.String() != first || res.After != first || !res.Published {
		t.Errorf("got %+v", res)
	}
	w.mustBeSound(res.Path, first)
	w.mustRead(res.Path, map[string]string{"a": "1"})
	if head := testenv.Must(os.ReadFile(w.path(res.Path, ".git", "HEAD")))(t); strings.TrimSpace(string(head)) != first {
		t.Errorf("HEAD is %s", head)
	}

	// Known: the remote is not asked, even if it is gone.
	w.git.Answer(widgets, 503)
	req := w.request(first)
	req.Known = Tip{Ref: req.Ref, Commit: first}
	again := testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if again.Asked || again.Published || again.Tree != res.Tree || again.Before != first {
		t.Errorf("again: %+v", again)
	}
	w.git.Answer(widgets, 0)

	// Other refs are published beside it.
	w.mustBeSound(w.sync("").Path, w.git.Head(widgets, "refs/heads/main"))
	w.mustBeSound(w.sync(second).Path, second)
	w.mustBeSound(res.Path, first)
	published, _, err := w.volume.Published(repoPath(t, widgets))
	if ref := testenv.Must(events.ParseRef(first))(t); err != nil || published.Commits[ref] != first || len(published.Commits) != 3 {
		t.Errorf("published: %v, %v", published.Commits, err)
	}
	if out := testenv.Must(gitserver.Git(t.Context(), w.volume.folder(repoPath(t, widgets)).generation(1).dir, "", "rev-parse", "refs/lockstep/commits/"+first))(t); strings.TrimSpace(out) != first {
		t.Errorf("the store has it as %s", out)
	}
}

func TestCommitWithoutItsOwnCapability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	tagged := w.push(map[string]string{"a": "2"})
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", tagged))(t)
	tip := w.push(map[string]string{"a": "3"})
	w.git.IgnoreVersion(true)

	w.mustBeSound(w.sync(tip).Path, tip)       // a branch is at it
	w.mustBeSound(w.sync(tagged).Path, tagged) // an annotated tag is
	_, err := w.trySync(first)
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	if !strings.Contains(err.Error(), "uploadpack.allowReachableSHA1InWant") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestCommitThatTheRemoteRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.push(map[string]string{"a": "2"})
	w.allowHashes()
	gone := w.commit("topic", gitserver.Edit{Parent: first, Write: map[string]string{"a": "4"}})
	testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/topic"))(t)
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", first))(t)
	tag := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", "refs/tags/v1"))(t))
	blob := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", first+":a"))(t))
	testenv.Must(w.git.Git(t.Context(), widgets, "", "config", "uploadpack.allowAnySHA1InWant", "true"))(t)
	_, err := w.trySync(blob)
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	testenv.Must(w.git.Git(t.Context(), widgets, "", "config", "--unset", "uploadpack.allowAnySHA1InWant"))(t)
	for name, commit := range map[string]string{"unknown": anID("ab"), "unreachable": gone} {
		_, err := w.trySync(commit)
		testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
		if err != nil && !strings.Contains(err.Error(), "does not send commit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = w.trySync(tag)
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	if _, err := os.Lstat(w.path(widgets)); !os.IsNotExist(err) {
		t.Errorf("something is published: %v", err)
	}
	mustBeTidy(t, w)
}

func TestCommitByItsHashOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	first := w.create(map[string]string{"a": "1"})
	second := w.push(map[string]string{"a": "2"})
	w.push(map[string]string{"a": "3"})
	for _, commit := range []string{first, second} { // over protocol 2, then 0
		w.mustBeSound(testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, commit)))(t).Path, commit)
		_, err := w.volume.Sync(t.Context(), w.sshRequest(server, anID("ab")))
		testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
		w.allowHashes()
	}
}

func TestPinnedCommitOfABranch(t *testing.T) {
	t.Parallel()
	for name, depth := range map[string]events.Depth{"depth 1": 1, "full history": events.DepthFull} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1", "b": "1"})
			second := w.push(map[string]string{"a": "2"})
			w.allowHashes()
			w.syncDepth("", depth)

			back := testenv.Must(w.pin("", first, depth))(t) // an ancestor: the server has nothing to send
			if back.Path != widgets || back.Ref.String() != "refs/heads/main" || back.Before != second || back.After != first || len(back.Files) != 1 {
				t.Errorf("back: %+v", back)
			}
			w.mustBeSound(widgets, first)
			if again := testenv.Must(w.pin("main", first, depth))(t); again.Published || again.Tree != back.Tree {
				t.Errorf("again: %+v", again)
			}
			if res := w.syncDepth("", depth); res.Before != first || res.After != second {
				t.Errorf("the tip: %+v", res)
			}
			w.mustBeSound(widgets, second)
			_, err := w.pin("none", first, depth)
			testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
		})
	}
}

func TestRemovedAndMovedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.push(map[string]string{"a": "2"})
	w.allowHashes()
	w.sync("")
	w.sync(first)
	req := RemoveRequest{Repo: repoPath(t, widgets), Ref: testenv.Must(events.ParseRef(first))(t), URL: w.git.URL(widgets), Fence: w.fence.Add(1)}
	if removed, err := w.volume.RemoveRef(t.Context(), req); !removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Lstat(w.path(widgets + "@" + first)); !os.IsNotExist(err) {
		t.Errorf("still published: %v", err)
	}
	w.mustBeSound(widgets, w.git.Head(widgets, "refs/heads/main"))
	w.mustBeSound(w.sync(first).Path, first)

	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.moveBetween(widgets, gadgets)))(t)
	w.mustBeSound(gadgets+"@"+first, first)
	w.gcAt(gadgets)
	w.mustBeSound(gadgets+"@"+first, first)
	w.mustVerifyAt(gadgets)
}
