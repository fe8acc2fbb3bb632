package volume

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestLinkPolicyChange changes the policy between two syncs. The next tree must follow the new policy,
// prepared or not, although no link has changed.
func TestLinkPolicyChange(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"file": "0"})
			w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"dir/out": "/etc/passwd", "in": "file"}})
			for i, policy := range []checkout.LinkPolicy{checkout.LinksKeep, checkout.LinksSkip, checkout.LinksKeep} {
				w.volume = w.open(w.volume.Root(), Config{Links: policy, Grace: 1})
				for n := range 4 {
					w.push(map[string]string{"file": fmt.Sprint(i, n)})
					w.sync("")
					if prepared {
						w.prepare()
					}
					if _, err := os.Lstat(w.path(widgets, "dir/out")); (err == nil) != (policy == checkout.LinksKeep) {
						t.Errorf("policy %s, push %d: %v", policy, n, err)
					}
					if target := testenv.Must(os.Readlink(w.path(widgets, "in")))(t); target != "file" {
						t.Errorf("the other link leads to %q", target)
					}
				}
				if report := w.verify(false); report.Found != 0 {
					t.Errorf("policy %s: %+v", policy, report)
				}
			}
			w.volume = w.open(w.volume.Root(), Config{Links: checkout.LinksRefuse, Grace: 1})
			w.push(map[string]string{"file": "last"})
			_, err := w.trySync("")
			testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
		})
	}
}

// TestChangedLinkRedirectsOthers replaces a folder by a link and back, so that an unchanged link leads out of the tree
// and in again.
func TestChangedLinkRedirectsOthers(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"file": "1", "d/file": "1"})
			w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"sub/l": "../d/../file", "sub/other": "../file"}})
			root := w.volume.Root()
			w.volume = w.open(root, Config{Links: checkout.LinksSkip, Grace: 1})
			folder := gitserver.Edit{Delete: []string{"d"}, Write: map[string]string{"d/file": "1"}}
			link := gitserver.Edit{Delete: []string{"d"}, Link: map[string]string{"d": "."}}
			touch := 0
			for _, edit := range []gitserver.Edit{folder, link, folder, link, {Write: map[string]string{"file": "2"}}, folder} {
				_, isLink := edit.Link["d"]
				isLink = isLink || len(edit.Delete) == 0
				commit := w.commit(gitserver.Main, edit)
				for range 2 { // the second push changes no link
					res := w.sync("")
					if prepared {
						w.prepare()
					}
					if res.After != commit || touch > 0 && len(res.Files) > 2 {
						t.Errorf("changed %+v", res.Files)
					}
					if _, err := os.Lstat(w.path(widgets, "sub/l")); (err == nil) == isLink {
						t.Errorf("with d as a link: %v, sub/l: %v", isLink, err)
					}
					if _, err := os.Lstat(w.path(widgets, "sub/other")); err != nil {
						t.Error(err)
					}
					if report := w.verify(false); report.Found != 0 {
						t.Errorf("%+v", report)
					}
					touch++
					commit = w.push(map[string]string{"touch": fmt.Sprint(touch)})
				}
				w.sync("")
			}
			w.volume = w.open(root, Config{Links: checkout.LinksRefuse, Grace: 1})
			commit := w.push(map[string]string{"file": "3"})
			w.sync("")
			w.commit(gitserver.Main, link)
			_, err := w.trySync("")
			testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
			if head := w.gitIn(widgets, "rev-parse", "HEAD"); head != commit {
				t.Errorf("published %s", head)
			}
		})
	}
}

// TestManyLinksResolveQuickly nests links so that resolving each separately would take 2^100 steps, and chains 5,000.
func TestManyLinksResolveQuickly(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	links := map[string]string{"x0": "d", "c0": "file"}
	for i := 1; i <= 100; i++ {
		links[fmt.Sprint("x", i)] = strings.Repeat(fmt.Sprint("x", i-1, "/../"), 20) + fmt.Sprint("x", i-1)
	}
	for i := 1; i <= 5000; i++ {
		links[fmt.Sprint("c", i)] = fmt.Sprint("c", i-1)
	}
	w.create(map[string]string{"file": "1", "d/file": "1"})
	w.commit(gitserver.Main, gitserver.Edit{Link: links})
	w.volume = w.open(w.volume.Root(), Config{Links: checkout.LinksSkip})

	w.sync("")

	for link, want := range map[string]bool{"x1": true, "x30": true, "c1": true, "c5000": false} {
		if _, err := os.Lstat(w.path(widgets, link)); (err == nil) != want {
			t.Errorf("%s: %v", link, err)
		}
	}
	if report := w.verify(false); report.Found != 0 {
		t.Errorf("%+v", report)
	}
}
