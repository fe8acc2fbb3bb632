package object_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/git/object"
)

// history makes commits with git fast-import. parents[i] are the parents of commit i, all lower; dates are its date.
func history(t *testing.T, parents [][]int, dates []int) (dir string, ids []object.ID) {
	t.Helper()
	dir = t.TempDir()
	run := func(stdin string, args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return string(out)
	}
	run("", "init", "-q", "--bare")
	var script strings.Builder
	for i, of := range parents {
		fmt.Fprintf(&script, "commit refs/heads/c%d\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata <<E\n%d\nE\n", i, i+1, dates[i], i)
		for n, parent := range of {
			fmt.Fprintf(&script, "%s :%d\n", []string{"from", "merge"}[min(n, 1)], parent+1)
		}
		script.WriteString("\n")
	}
	marks := filepath.Join(dir, "marks")
	run(script.String(), "fast-import", "--quiet", "--export-marks="+marks)
	text, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	ids = make([]object.ID, len(parents))
	for line := range strings.Lines(string(text)) {
		var mark int
		var id string
		if _, err := fmt.Sscanf(line, ":%d %s", &mark, &id); err == nil {
			ids[mark-1] = object.ParseID(id)
		}
	}
	return dir, ids
}

// TestBetweenAsGit compares random histories with git rev-list and git merge-base.
func TestBetweenAsGit(t *testing.T) {
	for seed := range uint64(6) {
		skew := []int{1, 300, 100_000}[seed%3] // all dates in order; some or all in disorder
		random := rand.New(rand.NewPCG(seed, 1))
		const n = 40
		parents, dates := make([][]int, n), make([]int, n)
		for i := range n {
			dates[i] = 1_700_000_000 + random.IntN(skew)
			if seed < 3 {
				dates[i] += 60 * i
			}
			for range min(i, random.IntN(3)) {
				if p := max(0, i-1-random.IntN(6)); !slices.Contains(parents[i], p) {
					parents[i] = append(parents[i], p)
				}
			}
		}
		dir, ids := history(t, parents, dates)
		objects := object.Open(dir)
		defer objects.Close()
		for range 25 {
			older, newer := ids[random.IntN(n)], ids[random.IntN(n)]
			r, err := objects.Between(t.Context(), older, newer, nil, 10_000)
			if err != nil || r.Partial || !r.Known {
				t.Fatalf("got %+v, %v", r, err)
			}
			listed, err := exec.Command("git", "-C", dir, "rev-list", older.String()+".."+newer.String()).Output()
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(string(listed))
			if !slices.Contains(want, newer.String()) { // newer is an ancestor of older
				want = append(want, newer.String())
			}
			var got []string
			for _, id := range r.Commits {
				got = append(got, id.String())
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: %s..%s: got %d commits, want %d", seed, older, newer, len(got), len(want))
			}
			descends := exec.Command("git", "-C", dir, "merge-base", "--is-ancestor", older.String(), newer.String()).Run() == nil
			if r.Descends != descends {
				t.Errorf("seed %d: %s descends from %s: got %v", seed, newer, older, r.Descends)
			}
		}
	}
}

// TestBetweenBelowBoth compares commits whose common history ends in a missing commit, which says nothing about what is new.
func TestBetweenBelowBoth(t *testing.T) {
	const day = 24 * 3600
	dir, ids := history(t, [][]int{nil, {0}, nil, {1, 2}}, []int{50 * day, 60 * day, day, 70 * day}) // 2 is visited last
	if err := os.Remove(filepath.Join(dir, "objects", ids[0].String()[:2], ids[0].String()[2:])); err != nil {
		t.Fatal(err)
	}
	objects := object.Open(dir)
	defer objects.Close()
	r, err := objects.Between(t.Context(), ids[1], ids[3], nil, 100)
	if err != nil || len(r.Commits) != 2 || r.Partial || !r.Descends || !r.Known {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestBetweenIncomplete(t *testing.T) {
	const n = 50
	parents, dates := make([][]int, n), make([]int, n)
	for i := range n {
		dates[i] = 1_700_000_000 + i
		if i > 0 {
			parents[i] = []int{i - 1}
		}
	}
	parents[n-1] = []int{0} // rewritten
	dir, ids := history(t, parents, dates)
	objects := object.Open(dir)
	defer objects.Close()
	for name, tc := range map[string]struct {
		older, newer             int
		shallow                  []object.ID
		limit, commits           int
		partial, descends, known bool
	}{
		"itself":             {5, 5, nil, 100, 1, false, true, true},
		"next":               {5, 6, nil, 100, 1, false, true, true},
		"all":                {0, 40, nil, 100, 40, false, true, true},
		"beyond the limit":   {0, 40, nil, 10, 10, true, false, false},
		"rewritten":          {40, n - 1, nil, 100, 1, false, false, true},
		"rewound":            {40, 30, nil, 100, 1, false, false, true},
		"shallow":            {30, 40, []object.ID{ids[35]}, 100, 6, true, false, false},
		"shallow below":      {30, 40, []object.ID{ids[30]}, 100, 10, false, true, true},
		"depth 1":            {30, 40, []object.ID{ids[40]}, 100, 1, true, false, false},
		"rewritten, shallow": {40, n - 1, []object.ID{ids[n-1], ids[40]}, 100, 1, true, false, false},
	} {
		r, err := objects.Between(t.Context(), ids[tc.older], ids[tc.newer], tc.shallow, tc.limit)
		if err != nil || len(r.Commits) != tc.commits || r.Partial != tc.partial || r.Descends != tc.descends || r.Known != tc.known {
			t.Errorf("%s: got %d commits, %+v, %v", name, len(r.Commits), r, err)
		}
		if err == nil && r.Commits[0] != ids[tc.newer] {
			t.Errorf("%s: the first commit is %s", name, r.Commits[0])
		}
	}
	missing := object.ParseID(strings.Repeat("1", 40))
	if r, err := objects.Between(t.Context(), missing, ids[9], nil, 100); err != nil || len(r.Commits) != 1 || !r.Partial || r.Known {
		t.Errorf("missing: got %+v, %v", r, err)
	}
	if err := os.Remove(filepath.Join(dir, "objects", ids[5].String()[:2], ids[5].String()[2:])); err != nil {
		t.Fatal(err)
	}
	again := object.Open(dir)
	defer again.Close()
	if r, err := again.Between(t.Context(), ids[5], ids[9], nil, 100); err != nil || len(r.Commits) != 1 || !r.Partial || !r.Known || !r.Descends {
		t.Errorf("missing, but named as a parent: got %+v, %v", r, err)
	}
	if _, err := objects.Between(t.Context(), ids[9], missing, nil, 100); err == nil {
		t.Error("a missing newer commit is no error")
	}
	kind, content, err := objects.Raw(ids[9])
	if err != nil || kind != "commit" || !strings.Contains(string(content), "\nparent "+ids[8].String()+"\n") {
		t.Errorf("got %s %q, %v", kind, content, err)
	}
}

// TestBetweenFollowsALimitedNumberOfParents has a commit that merges more than others do.
func TestBetweenFollowsALimitedNumberOfParents(t *testing.T) {
	const roots = 1100
	parents, dates := make([][]int, roots+1), make([]int, roots+1)
	for i := range parents {
		dates[i] = 1_700_000_000 + i
		if i < roots {
			parents[roots] = append(parents[roots], i)
		}
	}
	dir, ids := history(t, parents, dates)
	objects := object.Open(dir)
	defer objects.Close()
	if r, err := objects.Between(t.Context(), ids[3], ids[roots], nil, 5000); err != nil || !r.Descends || !r.Known || !r.Partial || len(r.Commits) != 1000 {
		t.Errorf("since the fourth parent: %d commits, descends %v, partial %v, %v", len(r.Commits), r.Descends, r.Partial, err)
	}
	if r, err := objects.Between(t.Context(), ids[roots-1], ids[roots], nil, 5000); err != nil || r.Descends || r.Known || !r.Partial {
		t.Errorf("since the last parent: descends %v, known %v, partial %v, %v; want it unknown", r.Descends, r.Known, r.Partial, err)
	}
}
