package wire

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

func TestSpeculationPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testenv.Must(NewNetwork(Config{}))(t)
		defer n.Close()
		const url = "https://git.test/acme/widgets"
		r := testenv.Must(n.Dial(url, Auth{}, false, Limits{}))(t)
		defer r.Close()
		commits := byte(0)
		may := func() bool {
			commits++
			return r.StartSpeculation(object.IDOf(bytes.Repeat([]byte{commits}, 20)))
		}
		if may() {
			t.Error("the remote is not known to speak protocol 2")
		}
		n.remotes.remember(url, &protocol2{})
		if !may() || r.StartSpeculation(object.IDOf(bytes.Repeat([]byte{commits}, 20))) {
			t.Error("want one speculation for each commit")
		}
		for name, wrong := range map[string][]Speculation{"disproved": {Disproved}, "refused": {Refused, Refused}} {
			for i, w := range wrong {
				if !may() {
					t.Errorf("%s: ended after %d", name, i)
				}
				r.EndSpeculation(w)
			}
			if may() {
				t.Errorf("%s: not ended", name)
			}
			time.Sleep(speculationBreak + time.Second)
			if !may() {
				t.Errorf("%s: not resumed", name)
			}
		}
		ssh := testenv.Must(n.Dial("ssh://git@git.test/acme/widgets", Auth{SSHKey: "x"}, false, Limits{}))(t)
		defer ssh.Close()
		if ssh.StartSpeculation(object.IDOf(bytes.Repeat([]byte{1}, 20))) {
			t.Error("speculation over SSH")
		}
	})
}
