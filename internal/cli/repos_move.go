package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
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
	Moved   bool   `json:"moved"`             // false if it was there already, or the command does not wait
	Seconds int64  `json:"seconds,omitempty"` // since the move was requested
}

func (m movedRepo) Table(w io.Writer) {
	switch {
	case m.From == m.To:
		fmt.Fprintf(w, "%s is in cell %s already\n", m.Repo, m.To)
	case m.Moved:
		fmt.Fprintf(w, "%s moved from cell %s to cell %s\n", m.Repo, m.From, m.To)
	default:
		fmt.Fprintf(w, "move of %s from cell %s to cell %s requested\n", m.Repo, m.From, m.To)
	}
}

func newReposMoveCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var to string
	var noWait bool
	cmd := withFlags(&cobra.Command{
		Use:   "move OWNER/NAME --to CELL",
		Short: "Move a repository to another cell",
		Long: "Move a repository to another cell, with its watches and what apps have received, and keep it there\n" +
			"whatever the weights of the cells. It ends when that cell works on the repository, and fetches it from\n" +
			"its remote; until it is published there, readers serve it from the former cell. If the command is\n" +
			"interrupted, or a process of either cell dies, the move goes on, and the command can be repeated. Exit\n" +
			"code 1 if the move is refused.",
		Example: "  lockstep repos move acme/widgets --to eu-2 --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep repos move acme/widgets --to eu-2 --no-wait --redis redis+cluster://127.0.0.1:7000",
		Args: term.WrongUse(term.OneArg),
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
				moved, err := moveRepo(ctx, client, directory, repo, to, !noWait, func(text string) {
					fmt.Fprintln(std.Stderr, "lockstep: "+text)
				})
				if err != nil {
					return err
				}
				return out.Show(std, moved, moved.Table)
			})
		},
	}, config.Common, &out)
	cmd.Flags().StringVar(&to, "to", "", "`cell` to move it to")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until it has moved")
	return cmd
}

// moveRepo requests a move and, if wait is set, waits until it is done. progress is called with the error of
// each failed attempt.
func moveRepo(
	ctx context.Context, client redis.UniversalClient, directory *cells.Directory, repo events.RepoPath, to string,
	wait bool, progress func(string),
) (movedRepo, error) {
	target, ok := directory.Cell(to)
	if !ok || target.State != cells.Active {
		return movedRepo{}, fmt.Errorf("cell %.70s: %w, or is not active", to, cells.ErrNoCell)
	}
	from := directory.Place(repo)
	moved := movedRepo{Repo: repo.String(), From: from.Name, To: to}
	if from.Name == to {
		_, err := directory.Pin(ctx, repo, to)
		return moved, err
	}
	known, err := app.IsKnown(ctx, client, cells.Member{Name: from.Name, Namespace: from.Prefix}, repo)
	if err != nil {
		return movedRepo{}, err
	}
	if !known {
		return movedRepo{}, fmt.Errorf("%s is not in cell %s, where it is placed: it has neither a state nor a watch",
			repo, from.Name)
	}
	queue := move.NewQueue(client, target.Prefix)
	request := move.Request{Repo: repo, From: from.Name, Epoch: directory.Epoch(), Pin: true}
	if _, err := queue.Request(ctx, request, true); err != nil || !wait {
		return moved, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	tries, began := 0, time.Now()
	for {
		r, waiting, err := queue.Get(ctx, repo)
		switch {
		case err != nil:
			return moved, err
		case !waiting:
			if err := directory.Refresh(ctx); err != nil {
				return moved, err
			}
			if directory.Place(repo).Name != to {
				return moved, fmt.Errorf("the move was dropped: the weights have changed, or cell %s was lost", from.Name)
			}
			if _, err := directory.Pin(ctx, repo, to); err != nil { // an attempt that had begun does not
				return moved, err
			}
			moved.Moved, moved.Seconds = true, int64(time.Since(began).Seconds())
			return moved, nil
		case r.Refused && r.Tries > tries:
			return moved, errors.New(term.OneLine(errors.New(r.Error)))
		case r.Error != "" && r.Tries > tries:
			progress("attempt failed, will retry: " + term.OneLine(errors.New(r.Error)))
		}
		tries = r.Tries
		select {
		case <-tick.C:
		case <-ctx.Done():
			return moved, fmt.Errorf("the move goes on without this command: %w", context.Cause(ctx))
		}
	}
}
