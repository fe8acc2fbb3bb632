package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestStateOfARepositoryIsShown shows to everybody what a worker stored about a repository, and to admins what names hosts,
// credentials, apps and settings.
func TestStateOfARepositoryIsShown(t *testing.T) {
	t.Parallel()
	one, two, now := strings.Repeat("1", 40), strings.Repeat("2", 40), time.Now().Format(time.RFC3339)
	for name, tc := range map[string]struct {
		state []any
		want  []string
		admin string // shown to admins only
		never string // not shown
		list  string // in the list of repositories
	}{
		"awaited commits": {
			state: []any{"awaited", fmt.Sprintf(`{"next":%[1]q,"commits":[{"entry":"1-0","app":"docs","ref":"refs/heads/<b>","commit":%[2]q,"since":%[1]q},
				{"entry":"2-0","app":"expired","ref":"","commit":%[2]q,"since":"2026-01-02T03:04:05Z"}]}`, now, one)},
			want: []string{"not visible yet", "&lt;b&gt;", one[:12]}, never: "expired",
		},
		"a refused commit": {
			state: []any{"refused", "refs/heads/main",
				"check:refs/heads/main", `{"ref":"refs/heads/main","commit":"` + one + `","at":"2026-11-23T01:02:03Z","class":"unverified","reason":"app deploy requires <b>",
					"verdicts":[{"keys":"team","apps":["deploy"],"verified":false,"reason":"not signed"}]}`,
				"check:refs/heads/v1", `{"ref":"refs/heads/v1","commit":"` + two + `","at":"2026-11-23T01:02:03Z",
					"verdicts":[{"keys":"team","apps":["deploy"],"verified":true,"by":"Alice <script>","key":"SHA256:abc","commits":3}]}`},
			want:  []string{"refused: unverified", `<span class="badge ok">verified</span>`, "Alice &lt;script&gt;", "SHA256:abc", "3 commits"},
			admin: "app deploy requires &lt;b&gt;", list: "commit refused",
		},
		"missing submodules": {
			state: []any{"missing", "refs/heads/main", "missing:refs/heads/main", `{"ref":"refs/heads/main","commit":"` + one + `","at":"2026-11-23T01:02:03Z","count":12,
				"submodules":[{"path":"libs/<b>","class":"auth","error":"git.example.com refused it (credential \"libs\")"}]}`},
			want: []string{"Missing submodules", "libs/&lt;b&gt;", "and 11 more"}, admin: "git.example.com refused it", list: "submodules missing",
		},
		"refs left out": {
			state: []any{"leftout", `[{"app":"ci","ref":"refs/heads/*","reason":"max-refs","max_refs":100,"count":34,"refs":["refs/heads/<b>"]},
				{"app":"docs","ref":"","reason":"name","count":1,"refs":["refs/heads/long"]}]`},
			want: []string{"Refs left out", "beyond max-refs 100", ">34<", "refs/heads/&lt;b&gt;", "name too long or not UTF-8"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDesk(t, nil)
			d.keep("acme/widgets", time.Minute, tc.state...)
			visitors, admins := d.page("/dashboard/repo?repo=acme/widgets", nil), d.page("/dashboard/repo?repo=acme/widgets", bearer)
			for _, want := range tc.want {
				if !strings.Contains(visitors, want) || !strings.Contains(admins, want) {
					t.Errorf("no %q", want)
				}
			}
			if tc.admin != "" && (strings.Contains(visitors, tc.admin) || !strings.Contains(admins, tc.admin)) {
				t.Errorf("want %q shown to admins only", tc.admin)
			}
			if tc.never != "" && strings.Contains(admins, tc.never) {
				t.Errorf("%q is shown", tc.never)
			}
			if list := d.page("/dashboard/repos", nil); !strings.Contains(list, tc.list) {
				t.Errorf("the list does not say %q", tc.list)
			}
		})
	}
}
