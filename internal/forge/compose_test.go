package forge_test

import (
	"errors"
	"testing"

	"lockstep/internal/forge"
)

func TestComposedDeliveriesAreAccepted(t *testing.T) {
	t.Parallel()
	for kind, remote := range map[forge.Kind]string{
		forge.GitHub: "https://github.com/acme/widgets.git", forge.GitLab: "https://gitlab.example/acme/sub/widgets.git", forge.Gitea: "http://git.example/acme/widgets.git",
		forge.Forgejo: "https://git.example/acme/widgets", forge.BitbucketCloud: "https://bitbucket.org/acme/widgets.git",
		forge.BitbucketDC: "https://git.example/scm/acme/widgets.git", forge.Azure: "https://dev.azure.com/acme/tools/_git/widgets", forge.Standard: "ssh://git@git.example/acme/widgets",
	} {
		for _, ref := range []string{"", "refs/heads/main", "refs/tags/v1"} {
			src := source(kind)
			to := remote
			if ref == "" {
				to = ""
			}
			header, body, err := forge.Compose(src, "delivery-1", to, ref, now)
			if err != nil {
				t.Fatal(err)
			}
			d, err := forge.Receive(src, header, body, now)
			if err != nil || d.ID != "delivery-1" {
				t.Fatalf("%s %s: %+v, %v", kind, ref, d, err)
			}
			checkSound(t, d)
			switch {
			case ref == "" && len(d.Events) > 0:
				t.Errorf("%s: a ping has events: %s", kind, summary(d))
			case ref != "" && (len(d.Events) != 1 || d.Events[0].Kind != forge.Pushed || d.Events[0].URLs[0] != remote || d.Events[0].Ref.String() != ref):
				t.Errorf("%s: %s, want a push of %s to %s; ignored: %s", kind, summary(d), ref, remote, d.Ignored)
			}
			src.Secrets = []string{earlier}
			if _, err := forge.Receive(src, header, body, now); !errors.Is(err, forge.ErrUnauthorized) {
				t.Errorf("%s: accepted with another secret: %v", kind, err)
			}
		}
	}
}
