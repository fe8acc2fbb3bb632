package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockstep/internal/app"
	"lockstep/internal/backup"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

func newImportCommand(std term.Streams) *cobra.Command {
	var flags backup.ImportConfig
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "import FILE",
		Short: "Import a file of lockstep export",
		Long: "Add the items of an export file that Redis lacks (- for standard input), and poll each repository with a new watch.\n" +
			"Existing items are not changed: those that differ are listed as kept. Tokens and watches that were removed after the export\n" +
			"are added again. The whole file is checked before anything is added. An import that was interrupted can be repeated.\n" +
			"Exit code 1 if a repository conflicts with watches that Redis has; the others are imported. A file of several cells restores\n" +
			"the directory if that is lost; otherwise each repository is imported into its present cell.",
		Example: "  lockstep import lockstep.export --dry-run --redis redis://127.0.0.1:6379\n" +
			"  gunzip -c lockstep.export.gz | lockstep import - --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return connected(cmd, std, term.Forever, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				file, header, err := openExport(cmd, args[0])
				if err != nil {
					return term.UsageError(fmt.Errorf("%s: %w", args[0], err))
				}
				defer file.Close()
				set, err := importedInto(ctx, cfg, client, header)
				if err != nil {
					return err
				}
				list := importList{out: &out, std: std, all: flags.DryRun}
				flags.Report = list.add
				summary, err := backup.Import(ctx, backup.Deployment{Redis: client, Cells: set, Tokens: cfg.Shared()}, file, flags)
				if flushed := list.flush(); err == nil {
					err = flushed
				}
				if errors.Is(err, backup.ErrCells) {
					return term.UsageError(fmt.Errorf("import %s: %w", args[0], err))
				}
				if err != nil {
					return fmt.Errorf("import %s: %w", args[0], err)
				}
				return list.end(summary)
			})
		},
	}, config.Common, &out)
	cmd.Flags().BoolVar(&flags.DryRun, "dry-run", false, "list what would be added, and change nothing")
	cmd.Flags().BoolVar(&flags.NoState, "no-state", false, "leave out what apps have received: for another volume, or another deployment")
	cmd.Flags().BoolVar(&flags.NoTokens, "no-tokens", false, "leave out tokens")
	return cmd
}

// importedInto returns the cells to import a document into: those of a directory that is still empty, too, if the document has it.
func importedInto(ctx context.Context, cfg config.Config, client redis.UniversalClient, header backup.Header) (*cells.Set, error) {
	set, err := app.OpenCells(ctx, cfg, client)
	if !errors.Is(err, cells.ErrNoCells) || len(header.Cells) == 0 || cfg.Cell != "" {
		return set, err
	}
	directory, err := cells.OpenOrNew(ctx, client, cfg.Directory())
	if err != nil {
		return nil, err
	}
	return cells.All(client, directory), nil
}

// openExport opens a file, or a copy of standard input, that has been checked to its end.
func openExport(cmd *cobra.Command, name string) (*os.File, backup.Header, error) {
	file, err := openSeekable(cmd, name)
	if err != nil {
		return nil, backup.Header{}, err
	}
	header, _, err := backup.Check(file)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close()
		return nil, backup.Header{}, err
	}
	return file, header, nil
}

func openSeekable(cmd *cobra.Command, name string) (*os.File, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		if _, err := file.Seek(0, io.SeekCurrent); err == nil {
			return file, nil
		}
		defer file.Close() // a pipe
		in = file
	}
	temp, err := unlinkedFile()
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(temp, in); err == nil {
		_, err = temp.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = temp.Close()
		return nil, err
	}
	return temp, nil
}

// unlinkedFile creates a temporary file without a name, or one in memory if there is no folder for it, as in a container.
func unlinkedFile() (*os.File, error) {
	file, err := os.CreateTemp("", "lockstep-import-*") // with mode 0600
	if err == nil {
		_ = os.Remove(file.Name())
		return file, nil
	}
	fd, memoryErr := unix.MemfdCreate("lockstep-import", unix.MFD_CLOEXEC)
	if memoryErr != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "lockstep-import"), nil
}

// importList prints the items of an import, some at a time.
type importList struct {
	out  *term.Output
	std  term.Streams
	all  bool // also the added items
	rows []backup.Item
}

const importRows = 500 // rows whose columns are aligned

func (l *importList) add(item backup.Item) error {
	if !l.all && item.Outcome == backup.Added && item.What != backup.ItemToken && item.What != backup.ItemCell {
		return nil
	}
	if !l.out.IsTable() {
		return l.out.Next(l.std.Stdout, item)
	}
	if l.rows = append(l.rows, item); len(l.rows) < importRows {
		return nil
	}
	return l.flush()
}

func (l *importList) flush() error {
	rows := l.rows
	l.rows = nil
	if len(rows) == 0 {
		return nil
	}
	return l.out.Show(l.std, nil, func(w io.Writer) {
		for _, item := range rows {
			of := item.Repo
			switch item.What {
			case backup.ItemCell:
				of = item.ID
			case backup.ItemToken:
				of = item.ID + " of " + item.App
			case backup.ItemWatch:
				of = strings.TrimSpace(of + " " + item.App + " " + item.Ref)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", item.Outcome, item.What, of, item.Error)
		}
	})
}

// importSummary is the last document of an import.
type importSummary struct {
	Summary backup.Summary `json:"summary"`
}

func (l *importList) end(s backup.Summary) error {
	var err error
	if l.out.IsTable() {
		err = l.out.Show(l.std, nil, func(w io.Writer) {
			added := fmt.Sprintf("%d watches, %d states, %d tokens", s.Watches, s.States, s.Tokens)
			if s.Cells > 0 {
				added = fmt.Sprintf("%d cells, ", s.Cells) + added
			}
			fmt.Fprintf(w, "added\t%s\nkept\t%d\nunchanged\t%d\n", added, s.Kept, s.Unchanged)
			if s.DryRun {
				fmt.Fprintln(w, "dry run: nothing was changed")
			}
		})
	} else {
		err = l.out.Next(l.std.Stdout, importSummary{s})
	}
	if err == nil && s.Conflicts > 0 {
		err = fmt.Errorf("%d repositories were left out: they conflict with watches that Redis has; remove those, or import them with another path", s.Conflicts)
	}
	return err
}
