package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/backup"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/disk"
	"lockstep/internal/term"
)

func newExportCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "export FILE",
		Short: "Export the state that only Redis has to a file",
		Long: "Write watches, hashes of tokens, and what apps have received of each watched repository to a file\n" +
			"for lockstep import, or to standard output for -. The file has no secrets and only its owner can\n" +
			"read it; it replaces an older one when it is complete. Processes need not be stopped. With several\n" +
			"cells, the file has all of them and the directory; the export fails if one does not answer. With\n" +
			"--cell, it has that one.",
		Example: "  lockstep export lockstep.export --redis redis://127.0.0.1:6379\n" +
			"  lockstep export - --redis redis://127.0.0.1:6379 | gzip > lockstep.export.gz",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, term.Forever, func(ctx context.Context, d deployment) error {
				doc, err := backup.Export(ctx, backup.Deployment{Redis: d.redis, Cells: d.cells, Tokens: d.cfg.Shared()},
					app.ReadBuild().Version)
				if err != nil {
					return err
				}
				if args[0] == "-" {
					return doc.Write(std.Stdout)
				}
				if info, err := os.Lstat(args[0]); err == nil && !info.Mode().IsRegular() {
					return fmt.Errorf("%s is not a regular file; for standard output, use -", args[0])
				}
				var text bytes.Buffer
				if err := doc.Write(&text); err != nil {
					return err
				}
				if err := disk.ReplacePrivate(args[0], text.Bytes()); err != nil {
					return err
				}
				return out.Show(std, doc.Counts, func(w io.Writer) {
					if doc.Counts.Cells > 0 {
						fmt.Fprintf(w, "cells\t%d\n", doc.Counts.Cells)
					}
					fmt.Fprintf(w, "repositories\t%d\nwatches\t%d\ntokens\t%d\n", doc.Counts.Repos, doc.Counts.Watches,
						doc.Counts.Tokens)
				})
			})
		},
	}, config.Common, &out)
}

func newImportCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "import FILE",
		Short: "Import a file of lockstep export",
		Long: "Add the items of an export file that Redis lacks (- for standard input), and poll each repository\n" +
			"with a new watch. Existing items are not changed: watches that differ are listed as kept. Tokens and\n" +
			"watches that were removed after the export are added again. The whole file is checked before\n" +
			"anything is added. An import that was interrupted can be repeated. Exit code 1 if a repository\n" +
			"conflicts with watches that Redis has; the others are imported. A file of several cells restores the\n" +
			"directory if that is lost; otherwise each repository is imported into its present cell.\n" + progressHelp,
		Example: "  lockstep import lockstep.export --redis redis://127.0.0.1:6379\n" +
			"  gunzip -c lockstep.export.gz | lockstep import - --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return connected(cmd, std, term.Forever, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient,
			) error {
				text, err := os.ReadFile(args[0])
				if args[0] == "-" {
					text, err = io.ReadAll(cmd.InOrStdin())
				}
				if err != nil {
					return term.UsageError(err)
				}
				doc, err := backup.Parse(text)
				if err != nil {
					return term.UsageError(fmt.Errorf("%s: %w", args[0], err))
				}
				set, err := app.OpenCells(ctx, cfg, client)
				if errors.Is(err, cells.ErrNoCells) && len(doc.Cells) > 0 && cfg.Cell == cells.Every { // the directory is lost
					var empty *cells.Directory
					empty, err = cells.OpenOrNew(ctx, client)
					set = cells.All(client, empty)
				}
				if err != nil {
					return err
				}
				show, stop := showLines(std.Stderr, out, "the file is checked")
				progress := func(next events.RepoPath, done, total int) {
					so := events.Progress{Done: int64(done), Total: int64(total), Unit: "repositories"}
					text := fmt.Sprintf("%d of %d repositories imported; now %s", done, total, next)
					show(progressLine{Repo: next.String(), Progress: so, text: text})
				}
				to := backup.Deployment{Redis: client, Cells: set, Tokens: cfg.Shared(), Progress: progress}
				s, err := backup.Import(ctx, to, doc)
				stop()
				if errors.Is(err, backup.ErrCells) {
					err = term.UsageError(err)
				}
				if err != nil {
					return fmt.Errorf("import %s: %w", args[0], err)
				}
				if err := out.Show(std, s, s.Table); err != nil {
					return err
				}
				if len(s.Conflicts) > 0 {
					return fmt.Errorf("%d repositories were left out: they conflict with watches that Redis has; "+
						"remove those, or import them with another path", len(s.Conflicts))
				}
				return nil
			})
		},
	}, config.Common, &out)
}
