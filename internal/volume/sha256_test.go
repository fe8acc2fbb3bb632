package volume

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// otherFormat is the object format that the tests of the package do not use.
func otherFormat() string {
	if os.Getenv("GIT_DEFAULT_HASH") == "sha256" {
		return "sha1"
	}
	return "sha256"
}

// anID returns an object ID of a repeated byte, in the format that the tests use.
func anID(digits string) string {
	if otherFormat() == "sha1" {
		return strings.Repeat(digits, 32)
	}
	return strings.Repeat(digits, 20)
}

// onlySHA1 skips a test of servers that have no SHA-256.
func onlySHA1(t *testing.T) {
	t.Helper()
	if otherFormat() == "sha1" {
		t.Skip("this server has SHA-1 only")
	}
}

// TestOtherFormat syncs a repository in the object format that other tests do not use: a first fetch, small and large pushes, a
// tag, a commit by its hash, prepared trees, and shallow and full history. To run all tests in it, set GIT_DEFAULT_HASH=sha256.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := testenv.Must(w.git.CreateAs(t.Context(), otherFormat(), widgets, map[string]string{"a": "1", "dir/b": "2", "empty": ""}))(t)
	module := strings.Repeat("ab", len(first)/2)
	res := w.sync("")
	if res.After != first {
		t.Fatalf("published %s, want %s", res.After, first)
	}
	w.mustBeSound(widgets, first)

	w.commit(gitserver.Main, gitserver.Edit{
		Write: map[string]string{"c": "3"}, Exec: map[string]string{"run": "#!/bin/sh\n"}, Link: map[string]string{"link": "dir/b"},
		Submodule: map[string]string{"module": module},
	})
	many := map[string]string{}
	for i := range 150 { // more than become loose objects
		many["many/"+string(rune('a'+i%26))+strings.Repeat("x", i)] = strings.Repeat("line\n", i)
	}
	before := w.push(many)
	w.sync("")
	w.mustBeSound(widgets, before)
	testenv.Must(w.volume.Prepare(t.Context(), PrepareRequest{Repo: repoPath(t, widgets), Ref: res.Ref, Fence: w.fence.Add(1)}))(t)
	tip := w.commit(gitserver.Main, gitserver.Edit{Write: map[string]string{"dir/b": "4"}, Delete: []string{"a"}})
	res = w.sync("")
	if paths := changed(res.Files); !slices.Equal(paths, []string{"deleted a", "modified dir/b"}) || res.Before != before {
		t.Errorf("since %s changed %q", res.Before, paths)
	}
	w.mustBeSound(widgets, tip)

	testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", before))(t)
	for _, ref := range []string{"refs/tags/v1", first} {
		w.sync(ref)
	}
	w.mustBeSound(widgets+"@"+first, first)
	w.mustBeSound(widgets+"@refs%2Ftags%2Fv1", before)

	req := w.request("")
	req.Depth = events.DepthFull
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if commits := w.gitIn(widgets, "rev-list", "--count", "HEAD"); commits != "4" {
		t.Errorf("%s commits in the full history", commits)
	}
	mustVerify(t, w)
}

func changed(files []events.File) (lines []string) {
	for _, file := range files {
		lines = append(lines, string(file.Status)+" "+file.Path)
	}
	return lines
}

func mustVerify(t *testing.T, w *world) {
	t.Helper()
	report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
	if report.Found > 0 || report.Trees == 0 || report.Objects == 0 {
		t.Errorf("verify: %.1000v", report)
	}
}

// TestFormatChanges replaces the remote's repository by one of the other object format, and back. The trees published before
// stay usable.
func TestFormatChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "same": "same"})
	req := w.request("")
	req.Depth = events.DepthFull
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	before := w.push(map[string]string{"a": "2"})
	old := w.sync("")
	want := []string{"deleted a", "added b", "modified same"} // the same content has another hash
	for _, format := range []string{otherFormat(), cmp.Or(os.Getenv("GIT_DEFAULT_HASH"), "sha1")} {
		testenv.Must(0, w.git.Delete(widgets))(t)
		commit := testenv.Must(w.git.CreateAs(t.Context(), format, widgets, map[string]string{"b": format, "same": "same"}))(t)

		res := w.sync("")

		if res.After != commit || res.Before != before || res.Full {
			t.Errorf("from %s to %s, full: %v; want from %s to %s", res.Before, res.After, res.Full, before, commit)
		}
		if paths := changed(res.Files); !slices.Equal(paths, want) {
			t.Errorf("changed %q, want %q", paths, want)
		}
		want = []string{"modified b", "deleted c", "modified same"}
		w.mustBeSound(widgets, commit)
		w.mustRead(widgets, map[string]string{"b": format, "same": "same"})
		w.mustBeSound(old.Tree, before)
		mustVerify(t, w)
		next := w.push(map[string]string{"c": "3"})
		old, before = w.sync(""), next
		w.mustBeSound(widgets, next)
	}
}

// TestOtherFormatOverOldProtocol syncs from a server of protocol 0.
func TestOtherFormatOverOldProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.git.IgnoreVersion(true)
	first := testenv.Must(w.git.CreateAs(t.Context(), otherFormat(), widgets, map[string]string{"a": "1"}))(t)
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", first))(t)
	w.sync("")
	commit := w.push(map[string]string{"a": "2"})
	w.sync("")
	w.mustBeSound(widgets, commit)
	w.mustBeSound(w.sync("refs/tags/v1").Path, first)
	testenv.Must(0, w.git.Delete(widgets))(t)
	again := w.create(map[string]string{"a": "3"})
	w.sync("")
	w.mustBeSound(widgets, again)
	mustVerify(t, w)
}

// TestEmptyRepositoryOfOtherFormat has no ref, over both protocols.
func TestEmptyRepositoryOfOtherFormat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(0, w.git.CreateEmptyAs(t.Context(), otherFormat(), widgets))(t)
	for _, old := range []bool{false, true} {
		w.git.IgnoreVersion(old)
		_, err := w.trySync("")
		testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	}
}

// TestBranchNamedLikeACommit publishes branches that are named like commits of both formats.
func TestBranchNamedLikeACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	for _, length := range []int{20, 32} {
		name := "refs/heads/" + strings.Repeat("ab", length)
		testenv.Must(0, w.git.SetRef(t.Context(), widgets, name, first))(t)
		res := w.sync(name)
		if !strings.HasSuffix(res.Path, "@"+strings.ReplaceAll(name, "/", "%2F")) {
			t.Errorf("published as %s", res.Path)
		}
		w.mustBeSound(res.Path, first)
	}
}

// TestHashOfOtherFormat asks for commits whose hashes have the wrong length.
func TestHashOfOtherFormat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	wrong := strings.Repeat("ab", 20)
	if len(commit) == 40 {
		wrong = strings.Repeat("ab", 32)
	}
	_, err := w.trySync(wrong)
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	if !strings.Contains(err.Error(), "needs") {
		t.Error(err)
	}
}
