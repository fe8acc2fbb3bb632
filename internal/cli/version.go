package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/term"
)

func newVersionCommand(std term.Streams) *cobra.Command {
	var out term.Output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  lockstep version --json",
		RunE: func(*cobra.Command, []string) error {
			b := app.ReadBuild()
			return out.Show(std, b, func(w io.Writer) {
				fmt.Fprintln(w, versionLine(b))
			})
		},
	}
	out.Add(cmd)
	return cmd
}

func versionLine(b app.Build) string {
	return fmt.Sprintf("lockstep %s %.12s %s %s", b.Version, b.Revision, b.Go, b.Platform)
}
