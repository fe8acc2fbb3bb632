package cells_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/redistest"
)

func path(t testing.TB, s string) events.RepoPath {
	t.Helper()
	p, err := events.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func paths(t testing.TB, n int) []events.RepoPath {
	all := make([]events.RepoPath, n)
	for i := range all {
		all[i] = path(t, fmt.Sprintf("acme/widgets-%d", i))
	}
	return all
}

// directory returns a directory with cells of weight 100.
func directory(t testing.TB, client redis.UniversalClient, names ...string) *cells.Directory {
	t.Helper()
	d, err := cells.OpenOrNew(context.Background(), client)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := d.Add(context.Background(), name, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, d)
	return d
}

func settle(t testing.TB, d *cells.Directory) {
	t.Helper()
	if err := d.Settle(context.Background(), d.Epoch()); err != nil {
		t.Fatal(err)
	}
}

func places(d *cells.Directory, repos []events.RepoPath) []string {
	names := make([]string, len(repos))
	for i, repo := range repos {
		names[i] = d.Place(repo).Name
	}
	return names
}

// same fails unless both copies place all repositories in the same cells.
func same(t *testing.T, a, b *cells.Directory, repos []events.RepoPath) {
	t.Helper()
	for _, repo := range repos {
		if a.Place(repo).Name != b.Place(repo).Name || a.Target(repo).Name != b.Target(repo).Name {
			t.Fatalf("%s is in %s by one copy, in %s by another", repo, a.Place(repo).Name, b.Place(repo).Name)
		}
	}
	if a.Epoch() != b.Epoch() || a.Overrides() != b.Overrides() {
		t.Errorf("epochs %d and %d, %d and %d overrides", a.Epoch(), b.Epoch(), a.Overrides(), b.Overrides())
	}
}

// TestAddAndDrainPlaceNothingElsewhere adds a cell, moves what it is to get, drains another, and moves that away.
func TestAddAndDrainPlaceNothingElsewhere(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	d, repos := directory(t, client, "eu-1", "eu-2"), paths(t, 1000)
	copied, err := cells.Open(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for step, change := range []func() error{
		func() error { _, err := d.Add(ctx, "eu-3", "", 100); return err },
		func() error { _, err := d.Drain(ctx, "eu-1"); return err },
	} {
		before := places(d, repos)
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if !d.Pending() || !slices.Equal(places(d, repos), before) {
			t.Fatalf("step %d: a change of weights has placed repositories elsewhere", step)
		}
		moved := 0
		for i, repo := range repos {
			target := d.Target(repo).Name
			if target == before[i] {
				continue
			}
			moved++
			if step == 0 && target != "eu-3" || step == 1 && before[i] != "eu-1" {
				t.Fatalf("step %d: %s moves from %s to %s", step, repo, before[i], target)
			}
			for range 2 { // repeated, as after a crash
				if err := d.Override(ctx, repo, before[i], target, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		if moved < 270 || moved > 400 || d.Overrides() != moved {
			t.Errorf("step %d: %d moved, %d overrides", step, moved, d.Overrides())
		}
		before = places(d, repos)
		settle(t, d)
		if d.Pending() || d.Overrides() != 0 || !slices.Equal(places(d, repos), before) {
			t.Errorf("step %d: %d overrides after settling, or repositories placed elsewhere", step, d.Overrides())
		}
		if err := copied.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		same(t, d, copied, repos)
	}
	if c, _ := d.Cell("eu-1"); c.State != cells.Gone || c.Placed != 0 {
		t.Errorf("the drained cell is %+v", c)
	}
}

func TestSettleRefusesAfterAnyChange(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	d := directory(t, client, "eu-1")
	other := directory(t, client)
	if _, err := d.Add(ctx, "eu-2", "", 100); err != nil {
		t.Fatal(err)
	}
	epoch := d.Epoch()
	if err := other.Override(ctx, path(t, "acme/widgets"), "eu-1", "eu-1", true); err != nil {
		t.Fatal(err)
	}
	if err := d.Settle(ctx, epoch); !errors.Is(err, cells.ErrChanged) {
		t.Error(err)
	}
	if c, _ := d.Cell("eu-2"); c.Placed != 0 {
		t.Errorf("eu-2 is given repositories: %+v", c)
	}
}

func TestFlipRefusesAThirdCell(t *testing.T) {
	t.Parallel()
	ctx, repo := context.Background(), path(t, "Acme/Widgets")
	d := directory(t, redistest.Start(t).Client(), "eu-1", "eu-2", "eu-3")
	from := d.Place(repo).Name
	others := slices.DeleteFunc([]string{"eu-1", "eu-2", "eu-3"}, func(name string) bool { return name == from })
	if err := d.Override(ctx, repo, others[0], others[1], false); !errors.Is(err, cells.ErrChanged) {
		t.Error(err)
	}
	if err := d.Override(ctx, repo, from, "eu-9", false); !errors.Is(err, cells.ErrNoCell) {
		t.Error(err)
	}
	if err := d.Override(ctx, repo, from, others[0], false); err != nil {
		t.Error(err)
	}
	if got := d.Place(path(t, "acme/widgets")).Name; got != others[0] {
		t.Errorf("placed in %s, want %s", got, others[0])
	}
}

func TestPinnedRepositoryStaysUntilItsCellIsDrained(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := directory(t, redistest.Start(t).Client(), "eu-1")
	repos := paths(t, 50)
	for _, repo := range repos {
		if err := d.Override(ctx, repo, "eu-1", "eu-1", true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Add(ctx, "eu-2", "", 1000); err != nil {
		t.Fatal(err)
	}
	for _, repo := range repos {
		if d.Target(repo).Name != "eu-1" {
			t.Fatalf("%s is to be moved", repo)
		}
	}
	settle(t, d)
	if d.Overrides() != len(repos) || slices.Contains(places(d, repos), "eu-2") {
		t.Errorf("%d pins left: %v", d.Overrides(), places(d, repos))
	}
	if _, err := d.Drain(ctx, "eu-1"); err != nil {
		t.Fatal(err)
	}
	for _, repo := range repos {
		if d.Place(repo).Name != "eu-1" || d.Target(repo).Name != "eu-2" {
			t.Fatalf("%s is in %s, to be in %s", repo, d.Place(repo).Name, d.Target(repo).Name)
		}
	}
}

func TestLostCellIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d, repos := directory(t, redistest.Start(t).Client(), "eu-1", "eu-2", "eu-3"), paths(t, 300)
	for _, repo := range repos[:10] {
		if err := d.Override(ctx, repo, d.Place(repo).Name, "eu-2", false); err != nil {
			t.Fatal(err)
		}
	}
	before := places(d, repos)
	if _, err := d.Lose(ctx, "eu-2"); err != nil {
		t.Fatal(err)
	}
	for i, name := range places(d, repos) {
		if name == "eu-2" || before[i] != "eu-2" && name != before[i] {
			t.Fatalf("%s: from %s to %s", repos[i], before[i], name)
		}
	}
	if d.Pending() || d.Overrides() != 0 {
		t.Errorf("pending %v, %d overrides", d.Pending(), d.Overrides())
	}
}

func TestTheLastCellCannotBeDrained(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := directory(t, redistest.Start(t).Client(), "eu-1")
	for name, drain := range map[string]func(context.Context, string) (cells.Cell, error){"drain": d.Drain, "lose": d.Lose} {
		if _, err := drain(ctx, "eu-1"); err == nil || !strings.Contains(err.Error(), "no other cell is active") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := drain(ctx, "eu-9"); !errors.Is(err, cells.ErrNoCell) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddRefusesWhatWouldMixTwoCells(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := directory(t, redistest.Start(t).Client())
	if _, err := d.Add(ctx, "eu-1", events.DefaultNamespace, 0); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cell   string
		prefix events.Namespace
		weight int
	}{
		"prefix of another cell":   {"eu-2", events.DefaultNamespace, 0},
		"prefix of the directory":  {"eu-2", cells.DefaultPrefix, 0},
		"another prefix":           {"eu-1", "lockstep:{1}:", 0},
		"no hash tag":              {"eu-2", "lockstep:", 0},
		"a name with a brace":      {"eu{2", "", 0},
		"a name with a space":      {"eu 2", "", 0},
		"weight beyond the limit":  {"eu-2", "", cells.MaxWeight + 1},
		"negative weight":          {"eu-2", "", -1},
		"an empty name":            {"", "", 0},
		"a name of 64 characters ": {strings.Repeat("a", 64), "", 0},
	} {
		if _, err := d.Add(ctx, tc.cell, tc.prefix, tc.weight); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if all := d.Cells(); len(all) != 1 || all[0].Placed != cells.DefaultWeight {
		t.Errorf("%+v", all)
	}
}

// TestConcurrentEditsAreAllKept edits different cells and repositories through copies of their own.
func TestConcurrentEditsAreAllKept(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	d, repos := directory(t, client, "eu-1", "eu-2", "eu-3", "eu-4"), paths(t, 40)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			mine := directory(t, client)
			name := fmt.Sprintf("eu-%d", i+1)
			if err := mine.Register(ctx, name, "http://"+name); err != nil {
				t.Error(err)
			}
			for _, repo := range repos[10*i : 10*i+10] {
				if err := mine.Override(ctx, repo, mine.Place(repo).Name, name, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if err := d.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	for i, repo := range repos {
		c := d.Place(repo)
		if want := fmt.Sprintf("eu-%d", i/10+1); c.Name != want || c.Reader != "http://"+want {
			t.Errorf("%s is in %+v, want %s", repo, c, want)
		}
	}
	copied, err := cells.Open(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	same(t, d, copied, repos)
}

// TestCopyFollowsAndReloads refreshes copies that are behind: by the log, and by the whole directory when the log does not reach back to
// them, or when Redis has lost data.
func TestCopyFollowsAndReloads(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	d, repos := directory(t, client, "eu-1", "eu-2"), paths(t, 30)
	var behind []*cells.Directory
	for range 3 {
		behind = append(behind, directory(t, client))
	}
	for _, repo := range repos {
		if err := d.Override(ctx, repo, d.Place(repo).Name, "eu-2", false); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Settle(ctx, d.Epoch()); err != nil { // deletes overrides
		t.Fatal(err)
	}
	if d.Overrides() == 0 || d.Overrides() == len(repos) {
		t.Fatalf("%d overrides", d.Overrides())
	}
	for i, damage := range []func(){
		func() {},
		func() { client.XTrimMaxLen(ctx, string(cells.DefaultPrefix)+"cells:log", 3) },
		func() { client.Del(ctx, string(cells.DefaultPrefix)+"cells:log") },
	} {
		damage()
		if err := behind[i].Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		same(t, d, behind[i], repos)
	}
	client.FlushAll(ctx)
	if err := d.Refresh(ctx); err != nil || d.Epoch() != 0 || len(d.Cells()) != 0 || d.Place(repos[0]).Name != "" {
		t.Errorf("epoch %d, %v after Redis has lost everything", d.Epoch(), err)
	}
}

func TestDirectoryIsRefreshedInOneRoundTrip(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	d := directory(t, client, "eu-1")
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	if err := d.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if n := trips.Load(); n != 1 {
		t.Errorf("%d round trips", n)
	}
}
