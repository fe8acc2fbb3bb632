package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"lockstep/internal/doctor"
	"lockstep/internal/term"
)

func newDoctorCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "doctor",
		Short: "Check Redis, the volume and this machine",
		Long: "Check what lockstep serve depends on with these settings, with advice for each problem: Redis'\n" +
			"version, role, persistence, memory, clock and latency; the file system of the volume (hard links,\n" +
			"renames, locks, sync), its free space and inodes, and whether it belongs to this prefix;\n" +
			"the permissions of credentials; webhook sources, the spool and the limit on open files. Run it on\n" +
			"each machine. It does not disturb a running service, but creates a missing volume and spool. Exit\n" +
			"code 1 if a check fails.",
		Example: "  lockstep doctor --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep doctor --config lockstep.yaml -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			if cfg, err = oneCell(cmd.Context(), cfg); err != nil {
				return err
			}
			checks := doctor.Examine(cmd.Context(), cfg, std.Environ)
			if err := out.Show(std, checks, checks.Table); err != nil {
				return err
			}
			all := len(checks)
			if failed := slices.DeleteFunc(checks, func(c doctor.Check) bool {
				return c.Verdict != doctor.VerdictFail
			}); len(failed) > 0 {
				return fmt.Errorf("%d of %d checks failed", len(failed), all)
			}
			return nil
		},
	}, allSettings, &out)
}
