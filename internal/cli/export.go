package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

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
		Long: "Write watches, hashes of tokens, and what apps have received of each watched repository to a file for lockstep import, or\n" +
			"to standard output for -. The file has no secrets and only its owner can read it; it replaces an older one when it is\n" +
			"complete. Processes need not be stopped. With several cells, the file has all of them and the directory; the export fails if\n" +
			"one does not answer. With --cell, it has that one.",
		Example: "  lockstep export lockstep.export --redis redis://127.0.0.1:6379\n" +
			"  lockstep export - --redis redis://127.0.0.1:6379 | gzip > lockstep.export.gz",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, term.Forever, func(ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set) error {
				write := func(w io.Writer) (backup.Counts, error) {
					return backup.Export(ctx, backup.Deployment{Redis: client, Cells: set, Tokens: cfg.Shared()}, app.ReadBuild().Version, w)
				}
				if args[0] == "-" {
					_, err := write(std.Stdout)
					return err
				}
				counts, err := exportTo(args[0], write)
				if err != nil {
					return err
				}
				return out.Show(std, counts, func(w io.Writer) {
					if counts.Cells > 0 {
						fmt.Fprintf(w, "cells\t%d\n", counts.Cells)
					}
					fmt.Fprintf(w, "repositories\t%d\nwatches\t%d\ntokens\t%d\n", counts.Repos, counts.Watches, counts.Tokens)
				})
			})
		},
	}, config.Common, &out)
}

// exportTo replaces a file once its new content is complete and on disk. Only its owner can read it. If the path is not a
// regular file, such as a pipe or a device, it writes to that directly.
func exportTo(path string, write func(io.Writer) (backup.Counts, error)) (backup.Counts, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return backup.Counts{}, err
		}
		counts, err := write(file)
		return counts, errors.Join(err, file.Close())
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+disk.TempInfix+"*") // with mode 0600
	if err != nil {
		return backup.Counts{}, err
	}
	defer os.Remove(file.Name()) // fails after the rename
	counts, err := write(file)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err == nil {
		err = disk.SyncDir(filepath.Dir(path))
	}
	return counts, err
}
