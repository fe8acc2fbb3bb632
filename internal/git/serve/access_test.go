package serve

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// hide returns a change of a repository after which its sender sees no ref of a name.
func hide(names ...string) func(*Repo, *Pinned) {
	return func(r *Repo, store *Pinned) {
		store.Restricted = true
		r.Refs = slices.DeleteFunc(r.Refs, func(ref Ref) bool { return slices.Contains(names, ref.Name) })
	}
}

// TestWants asks for commits by ID. The history of hidden refs is not served, nor what no ref names any more.
func TestWants(t *testing.T) {
	w := newWorld(t, nil)
	first := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	lost := testenv.Must(w.forge.Commit(t.Context(), widgets, "main", gitserver.Edit{Write: map[string]string{"a": "lost"}}))(t)
	second := testenv.Must(w.forge.Commit(t.Context(), widgets, "main", gitserver.Edit{Write: map[string]string{"a": "2"}, Parent: first}))(t)
	hidden := testenv.Must(w.forge.Commit(t.Context(), widgets, "secret", gitserver.Edit{Write: map[string]string{"s": "1"}, Parent: first}))(t)
	secret := testenv.Must(w.forge.Commit(t.Context(), widgets, "secret", gitserver.Edit{Write: map[string]string{"s": "2"}}))(t)
	blob := w.git(w.forge.Dir(widgets), "rev-parse", second+":a")
	w.onOpen(hide("refs/heads/secret"))
	for protocol, option := range protocols {
		for name, tc := range map[string]struct {
			want   string
			served bool
		}{
			"tip": {second, true}, "ancestor": {first, true}, "rewritten": {lost, false}, "hidden tip": {secret, false},
			"ancestor of a hidden tip": {hidden, false}, "blob": {blob, false}, "unknown": {strings.Repeat("12", len(first)/2), false},
		} {
			dir := t.TempDir()
			w.git(dir, "init", "-q")
			_, err := gitserver.Git(t.Context(), dir, "", slices.Concat(option, []string{"fetch", w.url(widgets), tc.want})...)
			switch {
			case tc.served && err != nil:
				t.Errorf("%s, %s: %v", protocol, name, err)
			case !tc.served && (err == nil || !strings.Contains(err.Error(), "not our ref "+tc.want)):
				t.Errorf("%s, %s: %v, want not our ref", protocol, name, err)
			}
		}
	}
}

// TestHiddenHaves claims to have a hidden commit, as shallow or not: nothing is learnt of it, and nothing below it is sent.
func TestHiddenHaves(t *testing.T) {
	w := newWorld(t, nil)
	first := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	parent := testenv.Must(w.forge.Commit(t.Context(), widgets, "secret", gitserver.Edit{Write: map[string]string{"s": "1"}, Orphan: true}))(t)
	secret := testenv.Must(w.forge.Commit(t.Context(), widgets, "secret", gitserver.Edit{Write: map[string]string{"s": "2"}}))(t)
	w.onOpen(hide("refs/heads/secret"))
	for _, have := range []string{secret, parent, strings.Repeat("12", len(first)/2)} {
		answer := w.post("version=2", pkts("command=fetch", "0001", "want "+first, "have "+have, "0000"))
		if !strings.Contains(answer, "NAK") || strings.Contains(answer, "ACK "+have) {
			t.Errorf("have %s: %q", have, answer)
		}
		for _, depth := range []string{"deepen 2147483647", "deepen 5", "deepen-since 1"} {
			answer = w.post("version=2", pkts("command=fetch", "0001", "want "+first, "shallow "+have, depth, "done", "0000"))
			if strings.Contains(answer, "unshallow") || !strings.Contains(answer, "PACK\x00\x00\x00\x02\x00\x00\x00\x03") {
				t.Errorf("shallow %s, %s: %q", have, depth, answer)
			}
		}
	}
	w.onOpen(func(r *Repo, store *Pinned) {
		hide("refs/heads/secret")(r, store)
		store.Former = []object.ID{object.ParseID(secret)}
	})
	if answer := w.post("version=2", pkts("command=fetch", "0001", "want "+first, "have "+secret, "0000")); !strings.Contains(answer, "ACK "+secret) {
		t.Errorf("former commit: %q", answer)
	}
}

// TestShallowStore fetches from a store with a history of depth 2: with --depth it works, otherwise it fails loudly.
func TestShallowStore(t *testing.T) {
	w := newWorld(t, nil)
	a := newAuthor(w, "acme/origin", "sha1", 7)
	a.commits(12)
	store := w.forge.Dir(widgets)
	w.git("/", "clone", "-q", "--mirror", "--depth=2", "file://"+w.forge.Dir("acme/origin"), store)
	const refusal = "kept at depth 2: use --depth, or watch with full depth"
	for protocol, option := range protocols {
		git := func(dir string, args ...string) (string, error) {
			return gitserver.Git(t.Context(), dir, "", slices.Concat(option, args)...)
		}
		dir := t.TempDir()
		if _, err := git(dir, "clone", w.url(widgets), "full"); err == nil || !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: clone: %v", protocol, err)
		}
		for _, depth := range []string{"1", "2", "50"} {
			ours, theirs := "ours-"+depth, "theirs-"+depth
			testenv.Must(git(dir, "clone", "-q", "--mirror", "--depth="+depth, w.url(widgets), ours))(t)
			testenv.Must(git(dir, "clone", "-q", "--mirror", "--depth="+depth, "file://"+store, theirs))(t)
			if w.contents(filepath.Join(dir, ours)) != w.contents(filepath.Join(dir, theirs)) {
				t.Errorf("%s: depth %s differs", protocol, depth)
			}
		}
		clone := filepath.Join(dir, "ours-1")
		for _, args := range [][]string{{"--unshallow"}, {"--deepen=1"}} {
			_, err := git(clone, append([]string{"fetch", "origin", "+refs/*:refs/*"}, args...)...)
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s: fetch %s: %v", protocol, args, err)
			}
		}
		a.commits(3)
		w.git(store, "fetch", "-q", "--depth=2", "origin", "+refs/*:refs/*")
		if _, err := git(clone, "fetch", "origin", "+refs/*:refs/*"); err == nil || !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: fetch: %v", protocol, err)
		}
		testenv.Must(git(clone, "fetch", "-q", "--depth=1", "origin", "+refs/*:refs/*"))(t)
		if got, want := w.git(clone, "for-each-ref"), w.git(w.forge.Dir("acme/origin"), "for-each-ref"); got != want {
			t.Errorf("%s: refs %s, want %s", protocol, got, want)
		}
		w.contents(clone)
	}
}

// TestEmpty clones a repository without commits, whose default branch is known to clients of protocol 2.
func TestEmpty(t *testing.T) {
	w := newWorld(t, nil)
	testenv.Must(0, w.forge.CreateEmpty(t.Context(), widgets))(t)
	testenv.Must(0, w.forge.SetHead(widgets, "trunk"))(t)
	for _, option := range protocols {
		dir := filepath.Join(t.TempDir(), "clone")
		w.git("/", slices.Concat(option, []string{"clone", "-q", w.url(widgets), dir})...)
		head := testenv.Must(os.ReadFile(filepath.Join(dir, ".git", "HEAD")))(t)
		if slices.Contains(option, "protocol.version=2") && string(head) != "ref: refs/heads/trunk\n" {
			t.Errorf("HEAD is %q", head)
		}
	}
}

// TestStatus sends requests that are none of Git's, or for what is not there.
func TestStatus(t *testing.T) {
	w := newWorld(t, nil)
	testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	for request, want := range map[string]int{
		"GET " + widgets + ".git/info/refs?service=git-upload-pack":  200,
		"GET acme/none.git/info/refs?service=git-upload-pack":        404,
		"GET " + widgets + ".git/info/refs":                          403,
		"GET " + widgets + ".git/info/refs?service=git-receive-pack": 403,
		"POST " + widgets + ".git/git-receive-pack":                  403,
		"POST " + widgets + ".git/git-upload-pack":                   415,
		"GET " + widgets + ".git/git-upload-pack":                    405,
		"POST " + widgets + ".git/info/refs":                         405,
		"GET " + widgets + ".git/HEAD":                               404,
	} {
		method, path, _ := strings.Cut(request, " ")
		r := testenv.Must(http.NewRequestWithContext(t.Context(), method, w.base+path, nil))(t)
		answer := testenv.Must(http.DefaultClient.Do(r))(t)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s, want %d", request, answer.Status, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestOtherDepth deepens a clone that also has a ref of which the store has less history: that ref stays as it is.
func TestOtherDepth(t *testing.T) {
	w := newWorld(t, nil)
	testenv.Must(w.forge.Create(t.Context(), "acme/origin", map[string]string{"a": "1"}))(t)
	testenv.Must(w.forge.Commit(t.Context(), "acme/origin", "side", gitserver.Edit{Write: map[string]string{"s": "1"}, Orphan: true}))(t)
	side := testenv.Must(w.forge.Commit(t.Context(), "acme/origin", "side", gitserver.Edit{Write: map[string]string{"s": "2"}}))(t)
	first := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"b": "1"}))(t)
	second := testenv.Must(w.forge.Commit(t.Context(), widgets, "main", gitserver.Edit{Write: map[string]string{"b": "2"}}))(t)
	w.git(w.forge.Dir(widgets), "fetch", "-q", "--depth=1", "file://"+w.forge.Dir("acme/origin"), "+refs/heads/side:refs/heads/side")
	w.onOpen(func(_ *Repo, store *Pinned) { store.Shallow = nil }) // as for main alone
	answer := w.post("version=2", pkts("command=fetch", "0001", "want "+second, "shallow "+second, "shallow "+side, "deepen 2147483647", "done", "0000"))
	if !strings.Contains(answer, "unshallow "+second) || strings.Contains(answer, "unshallow "+side) || !strings.Contains(answer, "PACK") {
		t.Errorf("%q (parent %s)", answer, first)
	}
}
