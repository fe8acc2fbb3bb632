package backup

import (
	"context"
	"time"

	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Export returns the document of a deployment. version is that of the program. A watch that cannot be decoded, and a cell that does not
// answer, are errors, because repositories would be missing.
func Export(ctx context.Context, from Deployment, version string) (doc Document, err error) {
	doc.Header = Header{Format: Format, Version: version, Time: time.Now().UTC().Truncate(time.Second)}
	tokens := access.NewTokens(from.Redis, from.Tokens)
	if doc.TokensRequired, err = tokens.Required(ctx); err != nil {
		return doc, err
	}
	directory := from.Cells.Directory()
	if directory != nil {
		doc.Cells, doc.Epoch = directory.Cells(), directory.Epoch()
	}
	written := map[string]bool{}
	if err := doc.addCells(ctx, from, written, false); err != nil {
		return doc, err
	}
	if directory != nil { // what has moved meanwhile may be in a cell that had been read
		if err := directory.Refresh(ctx); err != nil {
			return doc, err
		}
		if err := doc.addCells(ctx, from, written, true); err != nil {
			return doc, err
		}
	}
	err = tokens.Each(ctx, func(one access.Hashed) error {
		doc.Tokens = append(doc.Tokens, one)
		return nil
	})
	return doc, err
}

// addCells adds the repositories of all cells whose keys are not in written. It leaves out those between two cells unless moving is set.
func (d *Document) addCells(ctx context.Context, from Deployment, written map[string]bool, moving bool) error {
	for _, m := range from.Cells.Members() {
		repos, err := read(ctx, from, m, written, moving)
		if err != nil {
			return m.Explain(err)
		}
		d.Repos = append(d.Repos, repos...)
	}
	return nil
}

// read returns the repositories of a cell.
func read(ctx context.Context, from Deployment, m cells.Member, written map[string]bool, moving bool) (repos []Repository, err error) {
	states, directory := state.NewStore(from.Redis, m.Namespace), from.Cells.Directory()
	for one, err := range watch.NewRegistry(from.Redis, m.Namespace).All(ctx) {
		if err != nil {
			return nil, err
		}
		if written[one.Repo.Key()] {
			continue
		}
		known, err := states.Load(ctx, one.Repo)
		if err != nil {
			return nil, err
		}
		if !known.IsHere() && !moving {
			continue
		}
		r := Repository{Repo: one.Repo, Watches: one.Watches, State: known.Exported()}
		if directory != nil {
			r.Cell, r.Pinned = m.Name, directory.PinnedTo(r.Repo, m.Name)
		}
		written[r.Repo.Key()] = true
		repos = append(repos, r)
	}
	missed, err := unacknowledged(ctx, from.Redis, m.Namespace.Results()) // after the states, so that it has the results of all of them
	for _, r := range repos {
		if err == nil {
			err = missed.repeat(ctx, from.Redis, m.Namespace, r)
		}
	}
	return repos, err
}
