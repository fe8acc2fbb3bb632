package volume

import "testing"

// A user modifies a tree's index. Later trees must be built from the published commit.
func TestTamperedIndexIsNotReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "2"})
	w.sync("")
	w.gitIn(widgets, "rm", "--cached", "--quiet", "b")
	commit := w.push(map[string]string{"a": "changed"})
	w.sync("")
	w.mustRead(widgets, map[string]string{"a": "changed", "b": "2"})
	w.mustBeSound(widgets, commit)
}
