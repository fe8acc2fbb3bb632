package state

import (
	"maps"
	"slices"
	"strings"

	"lockstep/events"
)

const (
	movedPrefix = "moved:"
	maxMoves    = 16 // moves from one path that are remembered
)

// MovedTo reports whether the repository that was at this path has moved to another path, at the remote url,
// according to the newest 16 moves from here that were settled.
func (r Repo) MovedTo(to events.RepoPath, url string) bool {
	_, remote, ok := strings.Cut(r.fields[movedPrefix+to.Key()], " ")
	return ok && remote == events.CanonicalRemote(url)
}

// Moves returns the fields that record moves from this path, to keep when the others are cleared.
func (r Repo) Moves() map[string]string {
	moves := map[string]string{}
	for name, value := range r.fields {
		if strings.HasPrefix(name, movedPrefix) && value != "" {
			moves[name] = value
		}
	}
	return moves
}

// MovesAfter returns the fields of [Repo.Moves] after another move, by the given stream entry.
func (r Repo) MovesAfter(to events.RepoPath, url, entry string) map[string]string {
	moves := r.Moves()
	moves[movedPrefix+to.Key()] = entry + " " + events.CanonicalRemote(url)
	oldestFirst := slices.SortedFunc(maps.Keys(moves), func(a, b string) int {
		one, _, _ := strings.Cut(moves[a], " ")
		other, _, _ := strings.Cut(moves[b], " ")
		switch {
		case one == other:
			return strings.Compare(a, b)
		case events.EntryAfter(one, other):
			return 1
		}
		return -1
	})
	for _, name := range oldestFirst[:max(0, len(oldestFirst)-maxMoves)] {
		delete(moves, name)
	}
	return moves
}

// MovedHereFields returns the fields to set at the path that a repository has moved to from another: a move back is no
// longer in the way of the next one.
func (r Repo) MovedHereFields(from events.RepoPath) map[string]string {
	if name := movedPrefix + from.Key(); r.fields[name] != "" {
		return map[string]string{name: ""}
	}
	return nil
}
