package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

// movedRepo is the output of repos move.
type movedRepo struct {
	Repo    string `json:"repo"`
	From    string `json:"from"`
	To      string `json:"to"`
	Moved   bool   `json:"moved"`             // false if it was there already
	Seconds int64  `json:"seconds,omitempty"` // that it took
}

func (m movedRepo) Table(w io.Writer) {
	if !m.Moved {
		fmt.Fprintf(w, "%s is in cell %s already\n", m.Repo, m.To)
		return
	}
	fmt.Fprintf(w, "%s moved from cell %s to cell %s\n", m.Repo, m.From, m.To)
}

func newReposMoveCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var to string
	cmd := withFlags(&cobra.Command{
		Use:   "move OWNER/NAME --to CELL",
		Short: "Move a repository to another cell",
		Long: "Move a repository to another cell, with its watches and what apps have received, and keep it there\n" +
			"whatever the weights of the cells. It ends when that cell works on the repository, and fetches it from\n" +
			"its remote; until it is published there, readers serve it from the former cell. If the command is\n" +
			"interrupted, it can be repeated; a move that has begun is completed by the workers of the former cell.\n" +
			"Exit code 1 if the move fails.",
		Example: "  lockstep repos move acme/widgets --to eu-2 --redis redis+cluster://127.0.0.1:7000",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			if to == "" {
				return term.UsageError(errors.New("--to is required: name a cell; see lockstep cells ls"))
			}
			return onDirectory(cmd, std, func(
				ctx context.Context, _ config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				moved, err := moveRepo(ctx, client, directory, repo, to)
				if err != nil {
					return err
				}
				return out.Show(std, moved, moved.Table)
			})
		},
	}, config.Common, &out)
	cmd.Flags().StringVar(&to, "to", "", "`cell` to move it to")
	return cmd
}

// moveRepo moves a repository to a cell, and keeps it there.
func moveRepo(
	ctx context.Context, client redis.UniversalClient, directory *cells.Directory, repo events.RepoPath, to string,
) (movedRepo, error) {
	target, ok := directory.Cell(to)
	if !ok || target.State != cells.Active {
		return movedRepo{}, fmt.Errorf("cell %.70s: %w, or is not active", to, cells.ErrNoCell)
	}
	from := directory.Place(repo)
	moved := movedRepo{Repo: repo.String(), From: from.Name, To: to}
	if from.Name == to {
		return moved, directory.Override(ctx, repo, to, to, true)
	}
	began := time.Now()
	mover := move.Mover{Directory: directory, Redis: client, Log: slog.New(slog.DiscardHandler)}
	if err := mover.Move(ctx, repo, from.Name, to, true); err != nil {
		return moved, err
	}
	if err := directory.Override(ctx, repo, to, to, true); err != nil { // a worker may have begun the move, by the weights
		return moved, err
	}
	moved.Moved, moved.Seconds = true, int64(time.Since(began).Seconds())
	return moved, nil
}
