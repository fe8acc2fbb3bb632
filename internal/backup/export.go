package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// reposAtOnce is the number of repositories whose state is read at a time.
const reposAtOnce = 50

// exporter writes a document.
type exporter struct {
	client      redis.UniversalClient
	namespace   events.Namespace
	states      *state.Store
	registry    *watch.Registry
	undelivered *undelivered
	tokens      *access.Tokens
	encoder     *json.Encoder
	counts      Counts
}

// Export writes a document to out, and counts its items. A document without its last line is incomplete. tokens is the prefix of tokens: that
// of the directory if the namespace is that of a cell. version is that of the program. A watch that cannot be decoded is an error, because its repository would be missing.
func Export(ctx context.Context, client redis.UniversalClient, namespace, tokens events.Namespace, version string, out io.Writer) (Counts, error) {
	buffered := bufio.NewWriterSize(out, 64<<10)
	e := &exporter{
		client: client, namespace: namespace, encoder: json.NewEncoder(buffered),
		states: state.NewStore(client, namespace), registry: watch.NewRegistry(client, namespace),
		tokens: access.NewTokens(client, tokens),
	}
	e.encoder.SetEscapeHTML(false)
	err := e.run(ctx, version)
	if err == nil {
		err = buffered.Flush()
	}
	return e.counts, err
}

func (e *exporter) run(ctx context.Context, version string) error {
	volume, err := e.client.Get(ctx, e.namespace.Volume()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read the volume's ID: %w", err)
	}
	if e.undelivered, err = findUndelivered(ctx, e.client, e.namespace); err != nil {
		return err
	}
	if err := e.encoder.Encode(Header{Format: Format, Version: version, Time: time.Now().UTC().Truncate(time.Second), Volume: volume}); err != nil {
		return err
	}
	if err := e.watched(ctx); err != nil {
		return err
	}
	if err := e.unwatched(ctx); err != nil {
		return err
	}
	err = e.tokens.Each(ctx, func(one access.Hashed) error {
		e.counts.Tokens++
		return e.encoder.Encode(one)
	})
	if err != nil {
		return err
	}
	return e.encoder.Encode(End{End: true, Counts: e.counts})
}

// watched writes the repositories with watches.
func (e *exporter) watched(ctx context.Context) error {
	var some []watch.Stored
	for one, err := range e.registry.All(ctx) {
		if err != nil {
			return err
		}
		if some = append(some, one); len(some) == reposAtOnce {
			if err := e.write(ctx, some); err != nil {
				return err
			}
			some = nil
		}
	}
	return e.write(ctx, some)
}

// unwatched writes the repositories that only have state. One that is no longer watched since watched was called is among them.
func (e *exporter) unwatched(ctx context.Context) error {
	for cursor := uint64(0); ; {
		page, err := e.states.List(ctx, "", cursor, 1000)
		if err != nil {
			return err
		}
		var repos []events.RepoPath
		for _, summary := range page.Repos {
			if repo, err := events.ParseRepoPath(summary.Repo); err == nil {
				repos = append(repos, repo)
			}
		}
		watched, err := e.registry.AreWatched(ctx, repos)
		if err != nil {
			return err
		}
		var some []watch.Stored
		for i, repo := range repos {
			if !watched[i] {
				some = append(some, watch.Stored{Repo: repo})
			}
		}
		for len(some) > 0 {
			n := min(reposAtOnce, len(some))
			if err := e.write(ctx, some[:n]); err != nil {
				return err
			}
			some = some[n:]
		}
		if cursor = page.Next; cursor == 0 {
			return nil
		}
	}
}

// write writes repositories with their state.
func (e *exporter) write(ctx context.Context, some []watch.Stored) error {
	repos := make([]events.RepoPath, len(some))
	for i, one := range some {
		repos[i] = one.Repo
	}
	states, views, err := e.states.Read(ctx, repos)
	if err != nil {
		return err
	}
	if err := e.undelivered.read(ctx); err != nil { // after the states, so that it has the results of all of them
		return err
	}
	for i, one := range some {
		record := Repository{Repo: one.Repo, Watches: one.Documents, State: states[i].Exported()}
		if record.State != nil {
			record.Views = views[i]
			if err := e.undelivered.apply(ctx, one, record.State, record.Views); err != nil {
				return err
			}
		}
		if len(record.Watches) == 0 && len(record.State) == 0 {
			continue
		}
		e.counts.Repos++
		e.counts.Watches += len(record.Watches)
		if err := e.encoder.Encode(record); err != nil {
			return err
		}
	}
	return nil
}
