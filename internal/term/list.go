package term

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// List is how the rows of a list are printed.
type List[T any] struct {
	Columns []Column[T]
	Name    func(T) string // printed by -o name; what other commands take as an argument
	Empty   string         // what to do if there are no rows; printed to standard error instead of a table
}

// Column is a column of a list. Either Text or Time is set.
type Column[T any] struct {
	Head     string
	Text     func(T) string
	Time     func(T) time.Time // printed as "3m ago", or in full by -o wide
	None     string            // for the zero time; default "never"
	Wide     bool              // only with -o wide
	Optional bool              // left out if Text is empty for all rows
}

// Table prints the rows with a heading. now is the time to which times are relative.
func (l List[T]) Table(w io.Writer, rows []T, wide bool, now time.Time) {
	columns := slices.DeleteFunc(slices.Clone(l.Columns), func(c Column[T]) bool {
		return c.Wide && !wide || c.Optional && !slices.ContainsFunc(rows, func(row T) bool { return c.Text(row) != "" })
	})
	line := func(cell func(Column[T]) string) {
		var cells []string
		for _, c := range columns {
			cells = append(cells, cell(c))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	line(func(c Column[T]) string { return c.Head })
	for _, row := range rows {
		line(func(c Column[T]) string {
			switch {
			case c.Time == nil:
				return Dash(c.Text(row))
			case c.None != "" && c.Time(row).IsZero():
				return c.None
			case wide:
				return Absolute(c.Time(row))
			}
			return Relative(c.Time(row), now)
		})
	}
}

// ShowList prints a list in the form of out: the rows as a document, their names, or a table.
func ShowList[T any](std Streams, out *Output, rows []T, list List[T]) error {
	switch {
	case out.isDocument():
		return out.Document(std.Stdout, rows)
	case len(rows) == 0:
		if list.Empty == "" || out.Form == formName {
			return nil
		}
		_, err := fmt.Fprintf(std.Stderr, "lockstep: %s\n", list.Empty)
		return err
	case out.Form == formName:
		last := ""
		for _, row := range rows {
			name := Printable(list.Name(row))
			if name == last || name == "" { // such as two watches of one repository
				continue
			}
			last = name
			if _, err := fmt.Fprintln(std.Stdout, name); err != nil {
				return err
			}
		}
		return nil
	}
	return out.Show(std, rows, func(w io.Writer) { list.Table(w, rows, out.Form == formWide, time.Now()) })
}
