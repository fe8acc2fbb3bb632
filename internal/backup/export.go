package backup

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/notify"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Export returns the document of a deployment. version is that of the program. A watch that cannot be
// decoded, and a cell that does not answer, are errors, because repositories would be missing.
func Export(ctx context.Context, from Deployment, version string) (doc Document, err error) {
	doc.Header = Header{Format: Format, Version: version, Time: time.Now().UTC().Truncate(time.Second)}
	tokens, directory, written := access.NewTokens(from.Redis, from.Tokens), from.Cells.Directory(), map[string]bool{}
	if doc.TokensRequired, err = tokens.Required(ctx); err != nil {
		return doc, err
	}
	if directory != nil {
		doc.Cells, doc.Epoch = directory.Cells(), directory.Epoch()
	}
	for _, moving := range []bool{false, true} { // what has moved meanwhile may be in a cell that had been read
		for _, m := range from.Cells.Members() {
			if err := doc.add(ctx, from, m, written, moving); err != nil {
				return doc, m.Explain(err)
			}
		}
		if directory == nil {
			break
		}
		if err := directory.Refresh(ctx); err != nil {
			return doc, err
		}
	}
	err = tokens.Each(ctx, func(one access.Token) error {
		doc.Tokens = append(doc.Tokens, one)
		return nil
	})
	doc.Counts.Cells, doc.Counts.Repos, doc.Counts.Tokens = len(doc.Cells), len(doc.Repos), len(doc.Tokens)
	return doc, err
}

// add adds the repositories of a cell whose keys are not in written. It leaves out those between two cells
// unless moving is set.
func (d *Document) add(
	ctx context.Context, from Deployment, m cells.Member, written map[string]bool, moving bool,
) error {
	states, directory, before := state.NewStore(from.Redis, m.Namespace), from.Cells.Directory(), len(d.Repos)
	for one, err := range watch.NewRegistry(from.Redis, m.Namespace).All(ctx) {
		if err != nil {
			return err
		}
		known, err := states.Load(ctx, one.Repo)
		if err != nil {
			return err
		}
		if written[one.Repo.Key()] || !known.IsHere() && !moving {
			continue
		}
		r := Repository{Repo: one.Repo, Watches: one.Watches, State: known.Exported()}
		if directory != nil {
			r.Cell, r.Pinned = m.Name, directory.PinnedTo(r.Repo, m.Name)
		}
		written[r.Repo.Key()] = true
		d.Repos = append(d.Repos, r)
		d.Counts.Watches += len(r.Watches)
	}
	missed, err := findMissed(ctx, from.Redis, m.Namespace) // after the states, so that it has the results of all of them
	if err != nil {
		return err
	}
	outboxes := notify.Outboxes{Redis: from.Redis, Namespace: m.Namespace}
	for _, r := range d.Repos[before:] {
		sent, err := outboxes.AllSent(ctx, r.Repo, "")
		if err != nil {
			return err
		}
		if !sent || missed[r.Repo.Key()] {
			state.Repeat(r.State)
		}
	}
	return nil
}

// findMissed returns the keys of repositories with results that a consumer group has not acknowledged.
func findMissed(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace,
) (map[string]bool, error) {
	missed := map[string]bool{}
	_, unsettled, err := stream.ReadWatermarks(ctx, client, namespace.Results())
	if err != nil || unsettled == "" {
		return nil, err
	}
	for entry, err := range stream.NewReader(client).Forward(ctx, namespace.Results(), unsettled, "+") {
		if err != nil {
			return nil, err
		}
		switch r, _ := changes.ParseResult(entry); r.Type {
		case events.ResultSynced, events.ResultView, events.ResultRemoved:
			missed[r.Repo.Key()] = true
		case events.ResultMoved:
			missed[r.To.Key()] = true
		}
	}
	return missed, nil
}
