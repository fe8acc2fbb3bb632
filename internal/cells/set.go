package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Member is a cell as the rest of the program works with it: a name, and the prefix of its keys. The name is
// "" for a deployment without a directory.
type Member struct {
	Name      string
	Namespace events.Namespace
}

// Explain adds the name of the cell, if it has one, to an error.
func (m Member) Explain(err error) error {
	if err == nil || m.Name == "" {
		return err
	}
	return fmt.Errorf("cell %s: %w", m.Name, err)
}

// Missing is a cell that does not answer.
type Missing struct {
	Cell  string `json:"cell"`
	Error string `json:"error"`
}

// Set is the cells to place repositories in and to gather lists from: all of a directory, or a single
// deployment. All share a client, that of a Redis Cluster if they are to be on different masters.
type Set struct {
	redis     redis.UniversalClient
	directory *Directory // nil for a single one
	single    Member
}

// Single returns the set of one deployment. It costs nothing: no method of it sends a command, but those of a
// caller's functions.
func Single(client redis.UniversalClient, cell Member) *Set {
	return &Set{redis: client, single: cell}
}

// All returns the set of the cells of a directory.
func All(client redis.UniversalClient, directory *Directory) *Set {
	return &Set{redis: client, directory: directory}
}

// Redis returns the client of all cells.
func (s *Set) Redis() redis.UniversalClient { return s.redis }

// IsSingle reports whether the set is that of one deployment.
func (s *Set) IsSingle() bool { return s.directory == nil }

// Directory returns the directory, or nil for a single deployment.
func (s *Set) Directory() *Directory { return s.directory }

// Of returns the cell of a repository. It fails if the directory has no cell to place it in.
func (s *Set) Of(repo events.RepoPath) (Member, error) {
	if s.directory == nil {
		return s.single, nil
	}
	c := s.directory.Place(repo)
	if c.Name == "" {
		return Member{}, fmt.Errorf("place %s: %w", repo, ErrNoCells)
	}
	return c.Member(), nil
}

// Cell returns a cell by its name.
func (s *Set) Cell(name string) (Member, bool) {
	i := slices.IndexFunc(s.Members(), func(m Member) bool { return m.Name == name })
	if i < 0 {
		return Member{}, false
	}
	return s.Members()[i], true
}

// Members returns the cells by name, without those that are gone.
func (s *Set) Members() []Member {
	if s.directory == nil {
		return []Member{s.single}
	}
	var members []Member
	for _, c := range s.directory.Cells() {
		if c.State != Gone {
			members = append(members, c.Member())
		}
	}
	return members
}

// Member returns the cell as a [Member].
func (c Cell) Member() Member { return Member{Name: c.Name, Namespace: c.Prefix} }

// AnswerTimeout is how long a list waits for the cells to answer.
const AnswerTimeout = time.Second

// Answering returns the cells that answer a read within [AnswerTimeout], and those that do not. It asks all
// at once. A single deployment is not asked.
func (s *Set) Answering(ctx context.Context) (answering []Member, missing []Missing) {
	if s.directory == nil {
		return s.Members(), nil
	}
	for _, a := range Gather(ctx, s.Members(), AnswerTimeout, func(ctx context.Context, m Member) (struct{}, error) {
		return struct{}{}, s.redis.Exists(ctx, m.Namespace.Volume()).Err()
	}) {
		if a.Err != nil {
			missing = append(missing, a.Missing())
		} else {
			answering = append(answering, a.Member)
		}
	}
	return answering, missing
}

// Answer is what a cell has answered.
type Answer[T any] struct {
	Member
	Value T
	Err   error
}

// Missing returns the cell as one that has not answered.
func (a Answer[T]) Missing() Missing {
	if errors.Is(a.Err, context.DeadlineExceeded) {
		return Missing{a.Name, "no answer in time"}
	}
	return Missing{a.Name, a.Err.Error()}
}

// Gather calls fn for each cell, all at once, each for at most the timeout, and returns the answers in the
// order of the cells. It does not wait for a call that ignores its context.
func Gather[T any](
	ctx context.Context, members []Member, timeout time.Duration, fn func(context.Context, Member) (T, error),
) []Answer[T] {
	answers := make([]Answer[T], len(members))
	var group sync.WaitGroup
	for i, m := range members {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			done := make(chan Answer[T], 1)
			go func() {
				value, err := fn(ctx, m)
				done <- Answer[T]{m, value, err}
			}()
			select {
			case answers[i] = <-done:
			case <-ctx.Done():
				answers[i] = Answer[T]{Member: m, Err: ctx.Err()}
			}
		})
	}
	group.Wait()
	return answers
}
