package state

import (
	"context"
	"fmt"

	"lockstep/events"
)

// fieldsAtOnce is the number of fields that one call reads, so that a repository with 50,000 refs neither
// blocks Redis for long nor exceeds the time for a reply. Redis returns a hash with fewer buckets in one
// call, and so atomically.
const fieldsAtOnce = 10_000

// readableFields matches the fields of which [Store.LoadReadable] needs some: from, given, head, trouble and watched.
const readableFields = "[fghtw]*"

// LoadReadable returns the part of repo's state that says what apps may read: heads, what apps were given,
// which credentials are refused, and whether another cell still serves it.
func (s *Store) LoadReadable(ctx context.Context, repo events.RepoPath) (Repo, error) {
	fields, err := s.read(ctx, repo, readableFields)
	return Repo{fields: fields}, err
}

// read returns the fields whose names match a pattern; all for "". While it reads the pages of a large state,
// a field may change, so that some are from before and some from after. The holder of the repository's lease
// gets one state.
func (s *Store) read(ctx context.Context, repo events.RepoPath, pattern string) (map[string]string, error) {
	fields, err := s.scan(ctx, s.namespace.Repo(repo), pattern)
	if err != nil {
		return nil, fmt.Errorf("load the state of %s: %w", repo, err)
	}
	return fields, nil
}

func (s *Store) scan(ctx context.Context, key, pattern string) (map[string]string, error) {
	fields := map[string]string{}
	for cursor := uint64(0); ; {
		page, next, err := s.redis.HScan(ctx, key, cursor, pattern, fieldsAtOnce).Result()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(page); i += 2 {
			fields[page[i]] = page[i+1]
		}
		if cursor = next; cursor == 0 {
			return fields, nil
		}
	}
}
