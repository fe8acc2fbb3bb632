package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func newVersionCommand(std streams) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print which build this is",
		Example: "  lockstep version --json",
		Args:    wrongUse(noArgs),
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			return out.show(std, b, func(w io.Writer) {
				fmt.Fprintf(w, "lockstep %s %.12s %s %s\n", b.Version, b.Revision, b.Go, b.Platform)
			})
		},
	}
	out.add(cmd)
	return cmd
}
