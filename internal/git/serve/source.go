package serve

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"lockstep/internal/git/object"
)

// Source finds the repository that a request names, as its sender may see it.
type Source interface {
	// Open returns the repository of a request, whose path ends in /info/refs or /git-upload-pack: see
	// [Path]. The handler sends a [Refusal] to the client, and answers any other error with 503.
	Open(ctx context.Context, r *http.Request) (*Repo, error)
}

// Refusal is an error of a [Source] that is sent to the client.
type Refusal struct {
	Status int    // of HTTP. With 401 Git asks for a password, with 503 the answer has a Retry-After
	Text   string // Git shows it
}

func (r *Refusal) Error() string { return r.Text }

// Ref is a ref that clients see.
type Ref struct {
	Name   string    // full name, such as refs/heads/main
	ID     object.ID // of a commit or a tag
	Peeled object.ID // of an annotated tag: what it finally points to; otherwise zero
}

// Repo is a repository as one sender sees it.
type Repo struct {
	Name   string        // for logs
	Sender string        // who asks; each sender has at most a quarter of the handler's requests and space
	Refs   []Ref         // visible refs, sorted by name
	Head   string        // branch that HEAD names, visible or not; "" if HEAD is detached or unknown
	HeadID object.ID     // of HEAD; zero if its branch has no commit
	Format object.Format // of all objects

	// Pin returns the objects of the visible refs: at least of those that name wants, and of all if one of
	// wants is not named by a ref. It is called for fetches, at most once, and fails as Open does.
	Pin func(ctx context.Context, wants []object.ID) (*Pinned, error)
}

// Pinned is where the objects of a repository are.
type Pinned struct {
	Dirs    []string    // bare repositories that together have the objects; equal lists have equal objects
	Shallow []object.ID // commits whose parents are not kept; nil if the history is complete
	Depth   int         // of the history that is kept, if Shallow is set

	// Earlier are wanted commits that visible refs had before, as the sender has seen them. They are served
	// like those that the refs have now, since a ref may move between a client's list and its fetch.
	Earlier []object.ID

	// Restricted means that Dirs have objects that must stay hidden from the sender. Then only commits that
	// are reachable from the visible refs or in Former are acknowledged.
	Restricted bool
	Former     []object.ID // commits that visible refs had before, as the sender has seen them

	Close func() // is called once, to release the objects. Optional
}

// ref returns a visible ref, or HEAD.
func (r *Repo) ref(name string) (id object.ID, ok bool) {
	if name == "HEAD" {
		return r.HeadID, !r.HeadID.IsZero()
	}
	i, ok := slices.BinarySearchFunc(r.Refs, name, func(ref Ref, name string) int {
		return strings.Compare(ref.Name, name)
	})
	if !ok {
		return object.ZeroID, false
	}
	return r.Refs[i].ID, true
}

// Services of a Git server over HTTP: the ends of their paths.
const (
	infoRefs   = "/info/refs"
	uploadPack = "/git-upload-pack"
)

// Path returns the part of a request's path that names the repository, without a prefix and without .git:
// "acme/widgets" for /git/acme/widgets.git/info/refs and the prefix "/git/". ok is false for another path.
func Path(r *http.Request, prefix string) (repo string, ok bool) {
	path, ok := strings.CutPrefix(r.URL.Path, prefix)
	if !ok {
		return "", false
	}
	for _, service := range []string{infoRefs, uploadPack} {
		if repo, ok := strings.CutSuffix(path, service); ok {
			return strings.TrimSuffix(repo, ".git"), true
		}
	}
	return "", false
}
