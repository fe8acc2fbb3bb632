package volume

import (
	"fmt"
	"os"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestLinkPolicyChange changes the policy between two syncs. The next tree must follow the new policy,
// recycled or not, although no link has changed.
func TestLinkPolicyChange(t *testing.T) {
	t.Parallel()
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse=%v", reuse), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"file": "0"})
			w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"dir/out": "/etc/passwd", "in": "file"}})
			for i, policy := range []checkout.LinkPolicy{checkout.LinksKeep, checkout.LinksSkip, checkout.LinksKeep} {
				w.volume = w.open(w.volume.Root(), Config{Links: policy, Grace: 1, ReuseTrees: reuse})
				for n := range 4 {
					w.push(map[string]string{"file": fmt.Sprint(i, n)})
					w.sync("")
					if _, err := os.Lstat(w.path(widgets, "dir/out")); (err == nil) != (policy == checkout.LinksKeep) {
						t.Errorf("policy %s, push %d: %v", policy, n, err)
					}
					if target := testenv.Must(os.Readlink(w.path(widgets, "in")))(t); target != "file" {
						t.Errorf("the other link leads to %q", target)
					}
				}
				if report := w.verify(false); report.Found != 0 {
					t.Errorf("policy %s: %+v", policy, report)
				}
			}
			w.volume = w.open(w.volume.Root(), Config{Links: checkout.LinksRefuse, Grace: 1, ReuseTrees: reuse})
			w.push(map[string]string{"file": "last"})
			_, err := w.trySync("")
			testenv.MustFail(t, err, events.ClassHostile, events.Permanent)
		})
	}
}
