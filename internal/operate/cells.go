package operate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/cells"
	"lockstep/internal/redisx"
)

// Each calls fn for each cell that answers, in the order of their names, and returns the others. An error of fn means
// that its cell does not answer any more, unless there is only one.
func Each(ctx context.Context, set *cells.Set, fn func(cells.Member) error) ([]cells.Missing, error) {
	answering, missing := set.Answering(ctx)
	for _, cell := range answering {
		err := fn(cell)
		switch {
		case err == nil:
		case set.IsSingle() || !redisx.Unavailable(err):
			return missing, cell.Explain(err)
		default:
			missing = append(missing, cells.Answer[any]{Member: cell, Err: err}.Missing())
		}
	}
	return missing, nil
}

// Gather returns the rows that read finds in each cell that answers, and the other cells. The rows of several cells
// are sorted by compare. It returns up to limit rows, all if it is 0, and reports whether there are more. Rows that read
// returns with an error count: a caller may have no time to read them all.
func Gather[T any](
	ctx context.Context, set *cells.Set, limit int, compare func(a, b T) int,
	read func(cells.Member) (rows []T, more bool, err error),
) (list []T, more bool, missing []cells.Missing, err error) {
	list = []T{}
	missing, err = Each(ctx, set, func(cell cells.Member) error {
		rows, rest, err := read(cell)
		list, more = append(list, rows...), more || rest
		return err
	})
	if !set.IsSingle() {
		slices.SortStableFunc(list, compare)
	}
	if limit > 0 && len(list) > limit {
		list, more = list[:limit], true
	}
	return list, more, missing, err
}

// pages returns the rows of the pages of a cell after a cursor, up to limit, all if it is 0, and reports whether there are
// more. With an error it returns those before it.
func pages[T any](
	limit int, after string, read func(after string) (rows []T, next string, err error),
) (list []T, more bool, err error) {
	for {
		rows, next, err := read(after)
		list = append(list, rows...)
		if limit > 0 && len(list) > limit {
			return list[:limit], true, err
		}
		if after = next; err != nil || next == "" {
			return list, false, err
		}
	}
}

// Shown returns the name of a cell for documents: "" if there is only one.
func Shown(set *cells.Set, cell cells.Member) string {
	if set.IsSingle() {
		return ""
	}
	return cell.Name
}

// Unanswered returns an error that names cells that do not answer, or nil if there are none.
func Unanswered(missing []cells.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	texts := make([]string, len(missing))
	for i, m := range missing {
		texts[i] = m.Cell + " (" + m.Error + ")"
	}
	return errors.New("no answer from cell " + strings.Join(texts, ", "))
}

// Names returns the names of cells that do not answer, or nil if there are none.
func Names(missing []cells.Missing) (names []string) {
	for _, m := range missing {
		names = append(names, m.Cell)
	}
	return names
}

// Page calls list for the cell of a cursor, with the cell's own cursor, and returns the cursor of the next page: the
// index of the cell in front of the cell's own one. A cell that does not answer is skipped, and its name returned. The
// order of the cells is that of their names: a list that is read while a cell is added or removed may lack some of it
// or repeat it.
func Page(
	ctx context.Context, set *cells.Set, after string,
	list func(ctx context.Context, cell cells.Member, after string) (next string, err error),
) (next, missing string, err error) {
	if set.IsSingle() {
		next, err = list(ctx, set.Members()[0], after)
		return next, "", err
	}
	head, own, isCursor := strings.Cut(after, ":")
	index, err := strconv.Atoi(head)
	if after != "" && (!isCursor || err != nil || index < 0) {
		index, own = 0, ":" // which each cell refuses
	}
	members := set.Members()
	if index >= len(members) {
		return "", "", nil
	}
	limited, cancel := context.WithTimeout(ctx, cells.AnswerTimeout)
	defer cancel()
	own, err = list(limited, members[index], own)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", "", ctx.Err()
	case err != nil && !redisx.Unavailable(err) && limited.Err() == nil:
		return "", "", err
	case err != nil:
		missing = members[index].Name
	case own != "":
		return strconv.Itoa(index) + ":" + own, "", nil
	}
	if index+1 == len(members) {
		return "", missing, nil
	}
	return strconv.Itoa(index+1) + ":", missing, nil
}
