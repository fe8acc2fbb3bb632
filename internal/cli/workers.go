package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
)

func newWorkersCommand(std term.Streams) *cobra.Command {
	return newGroup("workers", "Show workers, or remove those not heard",
		"A worker without a heartbeat for 15 s is not heard: it is stopping, or has stopped without leaving, as after\n"+
			"kill -9. After 100 s it is missing, until it comes back, another one starts on its host, or it is\n"+
			"removed, for a week at most. Others take over its work.",
		newWorkersListCommand(std), newWorkersRemoveCommand(std))
}

func newWorkersListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:     "ls",
		Short:   "List workers, live ones first",
		Example: "  lockstep workers ls --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onCells(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
				list, missing, err := (&operate.Workers{Cells: d.cells, Grace: d.cfg.Grace}).List(ctx)
				return showList(std, &out, list, workerColumns, missing, err)
			})
		},
	}, config.Common, &out)
}

func newWorkersRemoveCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove an unheard worker",
		Example: "  lockstep workers rm build-7-41-kQfU8NYKqtdLLwLjGiFHpa --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
				gone, err := (&operate.Workers{Cells: d.cells}).Remove(ctx, "", args[0])
				if err != nil {
					return fmt.Errorf("%w; see lockstep workers ls", err)
				}
				return out.Show(std, gone, func(w io.Writer) { fmt.Fprintf(w, "removed\t%s\n", term.Printable(gone.Name)) })
			})
		},
	}, config.Common, &out)
}

var workerColumns = term.List[operate.Worker]{
	Columns: []term.Column[operate.Worker]{
		{Head: "WORKER", Text: func(w operate.Worker) string { return term.Printable(w.Name) }},
		{Head: "CELL", Text: func(w operate.Worker) string { return w.Cell }, Optional: true},
		{Head: "STATE", Text: func(w operate.Worker) string { return w.State }},
		{Head: "HEARD", Time: func(w operate.Worker) time.Time { return w.Heard }},
		{Head: "PENDING", Text: func(w operate.Worker) string { return strconv.FormatInt(w.Pending, 10) }},
	},
	Name:  func(w operate.Worker) string { return w.Name },
	Empty: "no worker takes changes; start one with lockstep serve",
}
