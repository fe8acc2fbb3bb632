package operate

import (
	"context"
	"errors"
	"fmt"

	"lockstep/events/stream"
	"lockstep/internal/cells"
)

// Letters are the dead letters of a deployment. A method for one letter is given its cell, or "" for the one that has
// the ID, and returns [stream.ErrBadID], [stream.ErrNoLetter], [stream.ErrNotRetryable] or [ErrSeveralLetters].
type Letters struct{ Cells *cells.Set }

// ErrSeveralLetters means that IDs of letters, which are unique within a cell, are the same in several.
var ErrSeveralLetters = errors.New("several cells have a letter with this ID; name the cell")

func (l *Letters) in(cell cells.Member) *stream.DeadLetters {
	return stream.NewDeadLetters(l.Cells.Redis(), string(cell.Namespace))
}

// of returns the cell of a letter.
func (l *Letters) of(ctx context.Context, name, id string) (cells.Member, error) {
	if l.Cells.IsSingle() {
		return l.Cells.Members()[0], nil
	}
	if name == "" {
		found, missing, err := l.Find(ctx, []string{id})
		switch {
		case err != nil:
			return cells.Member{}, err
		case len(found) == 0 && len(missing) > 0:
			return cells.Member{}, fmt.Errorf("letter %s is in no cell that answers: %w", id, Unanswered(missing))
		case len(found) == 0:
			return cells.Member{}, fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
		}
		name = found[0].Cell
	}
	cell, ok := l.Cells.Cell(name)
	if !ok {
		return cell, fmt.Errorf("%w in cell %.70q: no such cell", stream.ErrNoLetter, name)
	}
	return cell, nil
}

// Find returns the letters that have these IDs, in that order, and the cells that do not answer, which may have others.
func (l *Letters) Find(ctx context.Context, ids []string) (found []Letter, missing []cells.Missing, err error) {
	at := map[string]Letter{}
	missing, err = Each(ctx, l.Cells, func(cell cells.Member) error {
		for _, id := range ids {
			entry, err := l.in(cell).Get(ctx, id)
			switch other, isThere := at[id]; {
			case errors.Is(err, stream.ErrNoLetter):
			case err != nil:
				return err
			case isThere && other.Cell != cell.Name:
				return fmt.Errorf("%s is in %s and %s: %w", id, other.Cell, cell.Name, ErrSeveralLetters)
			default:
				at[id] = newLetter(Shown(l.Cells, cell), entry, false)
			}
		}
		return nil
	})
	for _, id := range ids {
		if letter, ok := at[id]; ok {
			found = append(found, letter)
		}
	}
	return found, missing, err
}

// LetterPage is a page of letters, all of one cell. It may be short, or even empty, and still have a next one.
type LetterPage struct {
	Letters []Letter `json:"letters"`
	Next    string   `json:"next,omitempty"`         // After of the next page; "" on the last
	Missing string   `json:"missing_cell,omitempty"` // the cell, if it does not answer
}

// Page lists cell by cell, each in order. A page has up to 1,000 letters, by default 100.
func (l *Letters) Page(ctx context.Context, q LetterQuery) (page LetterPage, err error) {
	page.Letters = []Letter{}
	page.Next, page.Missing, err = Page(ctx, l.Cells, q.After, func(
		ctx context.Context, cell cells.Member, after string,
	) (next string, err error) {
		q.After = after
		page.Letters, next, err = l.read(ctx, cell, q)
		return next, err
	})
	return page, err
}

// OfRepo returns letters of the repository that q names, from its cell alone, and whether there are more.
func (l *Letters) OfRepo(ctx context.Context, q LetterQuery) (list []Letter, more bool, err error) {
	cell, err := l.Cells.Of(q.Repo)
	if err != nil {
		return nil, false, err
	}
	list, next, err := l.read(ctx, cell, q)
	return list, next != "", err
}

// read returns a page of one cell.
func (l *Letters) read(ctx context.Context, cell cells.Member, q LetterQuery) (page []Letter, next string, err error) {
	page = []Letter{}
	_, next, err = l.in(cell).List(ctx, stream.Query{
		Reason: q.Reason, Oldest: q.Oldest, Limit: q.Limit, After: q.After,
		Match: func(entry stream.Letter) bool {
			letter := newLetter(Shown(l.Cells, cell), entry, false)
			matches := q.matches(letter, entry)
			if matches {
				page = append(page, letter)
			}
			return matches
		},
	})
	if err != nil {
		page = []Letter{}
	}
	return page, next, err
}

// List returns up to q.Limit letters of all cells that answer, all if it is 0, and the other cells. It reports whether
// there are more. With an error it returns what it has found before that.
func (l *Letters) List(ctx context.Context, q LetterQuery) ([]Letter, bool, []cells.Missing, error) {
	byTime := func(a, b Letter) int {
		if q.Oldest {
			a, b = b, a
		}
		return b.At.Compare(a.At)
	}
	in := q
	in.Limit = 0
	return Gather(ctx, l.Cells, q.Limit, byTime, func(cell cells.Member) (list []Letter, more bool, err error) {
		return pages(q.Limit, q.After, func(after string) ([]Letter, string, error) {
			in.After = after
			return l.read(ctx, cell, in)
		})
	})
}

// Get returns a letter with its event.
func (l *Letters) Get(ctx context.Context, cell, id string) (Letter, error) {
	in, err := l.of(ctx, cell, id)
	if err != nil {
		return Letter{}, err
	}
	letter, err := l.in(in).Get(ctx, id)
	if err != nil {
		return Letter{}, err
	}
	return newLetter(Shown(l.Cells, in), letter, true), nil
}

// LetterOutcome is what has become of one letter.
type LetterOutcome struct {
	ID     string `json:"id"`
	Stream string `json:"stream,omitempty"`
	Entry  string `json:"entry,omitempty"` // ID of the new entry
	Error  string `json:"error,omitempty"` // why the retry failed
	Gone   bool   `json:"-"`               // somebody has retried or dropped it, or nobody has had it
}

// Retry puts a letter's entry back into its stream, as [stream.DeadLetters.Retry] does.
func (l *Letters) Retry(ctx context.Context, cell, id string) (LetterOutcome, error) {
	in, err := l.of(ctx, cell, id)
	if err != nil {
		return LetterOutcome{}, err
	}
	topic, entry, err := l.in(in).Retry(ctx, id)
	return LetterOutcome{ID: id, Stream: topic, Entry: entry}, err
}

// RetriedLetters is the outcome of retrying many letters.
type RetriedLetters struct {
	Retried []LetterOutcome `json:"retried"`
	Refused []LetterOutcome `json:"refused"`
}

// RetryAll retries letters that have been listed or found; of several cells, nobody has those without a cell. An error of
// Redis ends those of a cell; the others go on.
func (l *Letters) RetryAll(ctx context.Context, letters []Letter) (done RetriedLetters, failed error) {
	done = RetriedLetters{[]LetterOutcome{}, []LetterOutcome{}}
	ended := map[string]bool{}
	for _, letter := range letters {
		if ended[letter.Cell] {
			continue
		}
		outcome, err := LetterOutcome{}, fmt.Errorf("%w: %s", stream.ErrNoLetter, letter.ID)
		if letter.Cell != "" || l.Cells.IsSingle() {
			outcome, err = l.Retry(ctx, letter.Cell, letter.ID)
		}
		switch {
		case err == nil:
			done.Retried = append(done.Retried, outcome)
		case errors.Is(err, stream.ErrNoLetter), errors.Is(err, stream.ErrNotRetryable):
			isGone := errors.Is(err, stream.ErrNoLetter)
			done.Refused = append(done.Refused, LetterOutcome{ID: letter.ID, Error: err.Error(), Gone: isGone})
		default:
			failed, ended[letter.Cell] = errors.Join(failed, cells.Member{Name: letter.Cell}.Explain(err)), true
		}
	}
	return done, failed
}

// Drop deletes a letter.
func (l *Letters) Drop(ctx context.Context, cell, id string) (LetterOutcome, error) {
	in, err := l.of(ctx, cell, id)
	if err != nil {
		return LetterOutcome{}, err
	}
	n, err := l.in(in).Drop(ctx, id)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
	}
	return LetterOutcome{ID: id}, err
}

// DropAll deletes letters that have been listed or found, and returns how many existed. An error in one cell does not
// keep it from the others.
func (l *Letters) DropAll(ctx context.Context, letters []Letter) (n int, failed error) {
	for _, cell := range l.Cells.Members() {
		var ids []string
		for _, letter := range letters {
			if letter.Cell == Shown(l.Cells, cell) {
				ids = append(ids, letter.ID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		dropped, err := l.in(cell).Drop(ctx, ids...)
		if n += dropped; err != nil {
			failed = errors.Join(failed, cell.Explain(err))
		}
	}
	return n, failed
}
