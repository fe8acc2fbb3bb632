package e2e

import (
	"os"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// gitSyncFlags are the flags of git-sync 4.7.1, and of its main branch at e2be7fa8 (July 2026).
var gitSyncFlags = strings.Fields(`
	add-user askpass-url cookie-file credential depth error-file exechook-backoff exechook-command exechook-timeout filter git git-config
	git-config-add git-gc github-app-application-id github-app-client-id github-app-installation-id github-app-private-key-file github-base-url
	group-write help http-bind http-metrics http-pprof init-max-failures init-period link man max-failures one-time password-file period
	pre-publish-exechook-command ref repo root sparse-checkout-file ssh-key-file ssh-known-hosts ssh-known-hosts-file stale-worktree-timeout
	submodules sync-on-signal sync-timeout touch-file username verbose version webhook-backoff webhook-method webhook-success-status
	webhook-timeout webhook-url
	branch change-permissions dest max-sync-failures password rev ssh sync-hook-command timeout wait`)

func TestGitSyncGuideCoversEveryFlag(t *testing.T) {
	t.Parallel()
	guide := string(proctest.Must(os.ReadFile("../../docs/migrating.md"))(t))
	for _, flag := range gitSyncFlags {
		if !strings.Contains(guide, "`--"+flag+"`") && !strings.Contains(guide, "`--"+flag+"=") {
			t.Errorf("docs/migrating.md does not say what becomes of --%s", flag)
		}
	}
}
