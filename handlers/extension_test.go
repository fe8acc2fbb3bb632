package handlers_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// guard is an extension that refuses commits that touch a file at the top of the tree.
type guard struct {
	File string `json:"guard" yaml:"guard"`
}

func init() { watch.Register(watch.Extension{Option: guard{}}) }

func (guard) Extension() string { return "guard" }

func (g guard) Check(watch.Watch) (watch.Option, error) { return g, nil }

// guarded is its part of a sync, for the options of a watch.
type guarded watch.Watch

func (g guarded) file() string { return watch.OptionOf[guard](watch.Watch(g)).File }

func (g guarded) Rules(events.Ref, bool) (string, error) { return g.file(), nil }

func (g guarded) Admit(ctx context.Context, c volume.Candidate) ([]state.Verdict, error) {
	history, err := c.Since(ctx, c.Published)
	if err != nil || c.Published == "" {
		return nil, err
	}
	for i, parent := range append(history.Commits, c.Published)[1:] {
		if commit := history.Commits[i]; !bytes.Equal(g.blob(c, commit), g.blob(c, parent)) {
			return nil, ext.Refusef(g.App, "%.12s touches %s", commit, g.file())
		}
	}
	return nil, nil
}

// blob returns the ID of the file in a commit.
func (g guarded) blob(c volume.Candidate, commit string) []byte {
	_, content, _ := c.Read(commit)
	_, tree, _ := c.Read(string(content[len("tree "):][:40]))
	_, rest, _ := bytes.Cut(tree, []byte(" "+g.file()+"\x00"))
	return rest[:min(20, len(rest))]
}

// TestAnotherExtension has one that the packages of a sync do not know.
func TestAnotherExtension(t *testing.T) {
	w := newWorld(t)
	w.handlers.Extensions = []ext.Extension{{Name: "guard", Join: func(s ext.Sync) ext.Part { return guarded(s.Watches[0]) }}}
	w.create(map[string]string{"a": "1", "OWNERS": "alice"})
	w.watchAs(watch.Watch{App: "docs", URL: w.git.URL(modelRepo), Depth: events.DepthFull, Options: watch.With(guard{"OWNERS"})}, "")
	w.settle("1")
	second := w.push(map[string]string{"a": "2"})
	w.settle("2")
	w.push(map[string]string{"OWNERS": "mallory"})
	w.push(map[string]string{"a": "3"})
	if w.looks("3"); !slices.Equal(w.refused(), []string{"refs/heads/main"}) || w.links() != "widgets=2" {
		t.Errorf("refused %q, published %s", w.refused(), w.links())
	}
	w.force(second)
	w.push(map[string]string{"a": "4"})
	if w.looks("4"); len(w.refused()) > 0 || w.links() != "widgets=4" {
		t.Errorf("refused %q, published %s", w.refused(), w.links())
	}
}

// TestNoExtensionJoinsWithoutOptions pushes, polls and removes.
func TestNoExtensionJoinsWithoutOptions(t *testing.T) {
	w := newWorld(t)
	w.handlers.Extensions = append(w.handlers.Extensions, ext.Extension{Name: "guard"})
	for i := range w.handlers.Extensions {
		e := &w.handlers.Extensions[i]
		e.Join = func(ext.Sync) ext.Part { t.Errorf("%s joined", e.Name); return nil }
	}
	w.history(2)
	w.watch("docs", "")
	w.settle("1")
	w.push(map[string]string{"a": "2"})
	w.looks("2")
	must(t, w.git.Delete(modelRepo))
	w.mustHandle("3-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), URL: w.git.URL(modelRepo)})
}
