package rig

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"lockstep/internal/git/object"
	"lockstep/internal/git/serve"
	"lockstep/internal/gitserver"
)

// Forge is a Git server in this process. All of its repositories share one chain of commits, each of which changes one file: a push only
// moves a ref along the chain, so that neither pushing nor serving starts a process.
type Forge struct {
	Commits []string       // the chain, oldest first
	Default map[string]int // refs of repositories without a push; nil: there is no other repository

	dir     string
	handler *serve.Handler

	mu   sync.Mutex
	refs map[string]map[string]int // repository → full ref → index in Commits
}

// NewForge makes a chain of n commits on a tree of so many files.
func (e *Env) NewForge(ctx context.Context, n, files int) (*Forge, error) {
	git, err := e.StartGit()
	if err != nil {
		return nil, err
	}
	const name = "bench/chain"
	if _, err := git.Generate(ctx, name, gitserver.Shape{Files: files, Bytes: int64(files) * 3_400}); err != nil {
		return nil, err
	}
	list, err := git.Git(ctx, name, "", "ls-tree", "-r", "--name-only", "--full-tree", gitserver.Main)
	if err != nil {
		return nil, err
	}
	if _, err := git.Git(ctx, name, chainScript(n, strings.Split(list, "\n")), "fast-import", "--quiet"); err != nil {
		return nil, err
	}
	if _, err := git.Git(ctx, name, "", "repack", "-adq"); err != nil {
		return nil, err
	}
	commits, err := git.Git(ctx, name, "", "rev-list", "--reverse", gitserver.Main)
	if err != nil {
		return nil, err
	}
	f := &Forge{Commits: strings.Split(commits, "\n"), dir: git.Dir(name), refs: map[string]map[string]int{}}
	if f.handler, err = serve.New(serve.Config{Source: f}); err == nil {
		e.Cleanup(f.handler.Close)
	}
	return f, err
}

// chainScript is the input of git fast-import that adds n-1 commits to the first one.
func chainScript(n int, paths []string) string {
	var b strings.Builder
	for i := 1; i < n; i++ {
		message, content := fmt.Sprintf("Change %d\n", i), strings.Repeat(fmt.Sprintf("line of change %d\n", i), 100)
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter Ada Example <ada@example.org> %d +0000\ndata %d\n%s\n", 1_700_000_000+i, len(message), message)
		if i == 1 {
			b.WriteString("from refs/heads/main^0\n")
		}
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", paths[i%len(paths)], len(content), content)
	}
	return b.String()
}

// Push moves a ref to a commit of the chain, by its index. It creates the repository and the ref if they do not exist.
func (f *Forge) Push(repo, ref string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refs[repo] == nil {
		f.refs[repo] = map[string]int{}
	}
	f.refs[repo][ref] = n
}

// ServeHTTP implements [http.Handler].
func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.handler.ServeHTTP(w, r) }

// Open implements [serve.Source].
func (f *Forge) Open(_ context.Context, r *http.Request) (*serve.Repo, error) {
	name, ok := serve.Path(r, "/")
	f.mu.Lock()
	defer f.mu.Unlock()
	refs := f.refs[name]
	if refs == nil {
		refs = f.Default
	}
	if !ok || refs == nil {
		return nil, &serve.Refusal{Status: http.StatusNotFound, Text: "no such repository"}
	}
	repo := &serve.Repo{Name: name, Sender: name, Format: object.SHA1, Head: "refs/heads/main"}
	for ref, n := range refs {
		repo.Refs = append(repo.Refs, serve.Ref{Name: ref, ID: object.ParseID(f.Commits[n])})
	}
	slices.SortFunc(repo.Refs, func(a, b serve.Ref) int { return strings.Compare(a.Name, b.Name) })
	head, ok := refs[repo.Head]
	if !ok {
		return nil, errors.New("the repository has no branch main")
	}
	repo.HeadID = object.ParseID(f.Commits[head])
	repo.Pin = func(context.Context, []object.ID) (*serve.Pinned, error) {
		return &serve.Pinned{Dirs: []string{f.dir}, Close: func() {}}, nil
	}
	return repo, nil
}
