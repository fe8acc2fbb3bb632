package dashboard

import (
	"time"

	"lockstep/events"
)

// repoCell has what the page of a repository reads of its cell.
type repoCell struct {
	name    string // "" if it is the cell that the dashboard shows, or the only one
	results string // the stream of results
}

// cellOf returns the cell of a repository.
func (d *Dashboard) cellOf(repo events.RepoPath) (repoCell, error) {
	cell, err := d.cfg.Watches.Cells.Of(repo)
	if err != nil || cell.Name == d.cfg.Cell {
		return repoCell{"", d.cfg.Results}, err
	}
	return repoCell{cell.Name, cell.Namespace.Results()}, nil
}

// cellTimeout limits the page of a repository in another cell.
const cellTimeout = 1500 * time.Millisecond

// cellError is the error of another cell than that of the dashboard.
type cellError struct {
	cell string
	err  error
}

func (e *cellError) Error() string { return "cell " + e.cell + ": " + e.err.Error() }

func (e *cellError) Unwrap() error { return e.err }
