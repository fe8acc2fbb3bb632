package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/doctor"
)

func newDoctorCommand(std term.Streams) *cobra.Command {
	var out term.Output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that Redis, the volume and this machine are fit for the service",
		Long: "Check what lockstep serve would depend on with the same settings, and say what to do about it: Redis' version,\n" +
			"role, persistence, memory, clock and speed; what the volume's file system can do (hard links, renames, locks,\n" +
			"exchange, sync), its free space and inodes, and whether it is the one of this prefix; who may read the credentials;\n" +
			"the sources of webhooks, their spool, the address to listen on, the limit on open files. Other machines cannot\n" +
			"be looked at from here: run it on each. Nothing of a running service is changed; a volume that is not there\n" +
			"yet is made. Exit code 1 when something will not work.",
		Example: "  lockstep doctor --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep doctor --config lockstep.yaml -o json",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			checks := doctor.Examine(cmd.Context(), cfg, std.Environ)
			if err := out.Show(std, checks, checks.Table); err != nil {
				return err
			}
			failed := 0
			for _, c := range checks {
				if c.Verdict == doctor.VerdictFail {
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d checks failed", failed, len(checks))
			}
			return nil
		},
	}
	config.AddFlags(cmd.Flags(), allSettings)
	out.Add(cmd)
	return cmd
}
