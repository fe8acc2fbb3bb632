package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/backup"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

func newImportCommand(std term.Streams) *cobra.Command {
	var options backup.Options
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "import FILE",
		Short: "Import a file of lockstep export",
		Long: "Add the items of an export file that Redis lacks (- for standard input), and poll each repository with a new watch.\n" +
			"Existing items are not changed: watches that differ are listed as kept. Tokens and watches that were removed after the\n" +
			"export are added again. The whole file is checked before anything is added. An import that was interrupted can be repeated.\n" +
			"Exit code 1 if a repository conflicts with watches that Redis has; the others are imported. A file of several cells restores\n" +
			"the directory if that is lost; otherwise each repository is imported into its present cell.",
		Example: "  lockstep import lockstep.export --redis redis://127.0.0.1:6379\n" +
			"  gunzip -c lockstep.export.gz | lockstep import - --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return connected(cmd, std, term.Forever, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				document, header, err := readExport(cmd, args[0])
				if err != nil {
					return term.UsageError(fmt.Errorf("%s: %w", args[0], err))
				}
				set, err := importedInto(ctx, cfg, client, header)
				if err != nil {
					return err
				}
				s, err := backup.Import(ctx, backup.Deployment{Redis: client, Cells: set, Tokens: cfg.Shared()}, document, options)
				if errors.Is(err, backup.ErrCells) {
					return term.UsageError(fmt.Errorf("import %s: %w", args[0], err))
				}
				if err != nil {
					return fmt.Errorf("import %s: %w", args[0], err)
				}
				if err := out.Show(std, s, func(w io.Writer) { showImport(w, s) }); err != nil {
					return err
				}
				if len(s.Conflicts) > 0 {
					return fmt.Errorf("%d repositories were left out: they conflict with watches that Redis has; remove those, or import them with another path", len(s.Conflicts))
				}
				return nil
			})
		},
	}, config.Common, &out)
	cmd.Flags().BoolVar(&options.NoState, "no-state", false, "leave out what apps have received: for another deployment")
	cmd.Flags().BoolVar(&options.NoTokens, "no-tokens", false, "leave out tokens")
	return cmd
}

// readExport returns the content of a file, or of standard input, that has been checked.
func readExport(cmd *cobra.Command, name string) (document []byte, header backup.Header, err error) {
	if name == "-" {
		document, err = io.ReadAll(cmd.InOrStdin())
	} else {
		document, err = os.ReadFile(name)
	}
	if err == nil {
		header, err = backup.Check(document)
	}
	return document, header, err
}

// importedInto returns the cells to import a document into: those of a directory that is still empty, too, if the document has it.
func importedInto(ctx context.Context, cfg config.Config, client redis.UniversalClient, header backup.Header) (*cells.Set, error) {
	set, err := app.OpenCells(ctx, cfg, client)
	if !errors.Is(err, cells.ErrNoCells) || len(header.Cells) == 0 || cfg.Cell != cells.Every {
		return set, err
	}
	directory, err := cells.OpenOrNew(ctx, client, cfg.Directory())
	if err != nil {
		return nil, err
	}
	return cells.All(client, directory), nil
}

func showImport(w io.Writer, s backup.Summary) {
	for _, one := range s.Kept {
		fmt.Fprintf(w, "kept\t%s\n", one)
	}
	for _, one := range s.Conflicts {
		fmt.Fprintf(w, "conflict\t%s\n", one)
	}
	added := fmt.Sprintf("%d watches, %d states, %d tokens", s.Watches, s.States, s.Tokens)
	if s.Cells > 0 {
		added = fmt.Sprintf("%d cells, ", s.Cells) + added
	}
	fmt.Fprintf(w, "added\t%s\nunchanged\t%d\n", added, s.Unchanged)
}
