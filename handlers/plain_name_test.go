package handlers_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPlainNameFollowsDefaultBranch changes the default branch to one that is published already, for another watch.
func TestPlainNameFollowsDefaultBranch(t *testing.T) {
	for name, selectors := range map[string][]string{
		"a pattern too":          {"", "refs/heads/*"},
		"the new one's name too": {"", "dev"},
		"only a pattern":         {"refs/heads/*"},
		"only names":             {"main", "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1"})
			w.branch(first, "dev")
			for _, selector := range selectors {
				w.watch("docs", selector)
			}
			w.due("a-0")
			must(t, w.git.SetHead("acme/widgets", "dev"))
			w.settle("b")
			published, _, err := w.handlers.Volume.Published(w.repo())
			must(t, err)
			if published.Plain != mustRef("dev") {
				t.Errorf("the plain name is %s, want that of dev", published.Plain)
			}
		})
	}
}

// TestPlainNameOfFormerDefaultBranchStaysCurrent changes the default branch to one that nobody watches.
func TestPlainNameOfFormerDefaultBranchStaysCurrent(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.branch(first, "dev")
	w.watch("docs", "main")
	w.settle("a")
	must(t, w.git.SetHead("acme/widgets", "dev"))
	second := w.push(map[string]string{"a": "2"})
	w.settle("b")
	published, _, err := w.handlers.Volume.Published(w.repo())
	must(t, err)
	if published.Commits[mustRef("main")] != second {
		t.Errorf("main is published at %.7s, want %.7s", published.Commits[mustRef("main")], second)
	}
	content, err := os.ReadFile(filepath.Join(w.root, "acme/widgets/a"))
	if err != nil || string(content) != "2" {
		t.Errorf("the plain name has %q, error %v; want that of main's last commit", content, err)
	}
}
