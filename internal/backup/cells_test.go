package backup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

const directoryPrefix = cells.DefaultPrefix

// directory is a deployment of the cells of a directory, which may be empty.
func directory(t *testing.T, client redis.UniversalClient) (Deployment, *cells.Directory) {
	t.Helper()
	d := must(cells.OpenOrNew(t.Context(), client, directoryPrefix))(t)
	return Deployment{Redis: client, Cells: cells.All(client, d), Tokens: directoryPrefix}, d
}

// twoCells has a repository on each of two cells, of different weights and with a volume each, one that is pinned to the cell that its
// path does not have, and a token.
func twoCells(t *testing.T, client redis.UniversalClient) (Deployment, *cells.Directory) {
	t.Helper()
	ctx := t.Context()
	from, d := directory(t, client)
	must(d.Add(ctx, "eu-1", namespace, 100))(t)
	must(d.Add(ctx, "eu-2", "", 300))(t)
	if err := d.Settle(ctx, d.Epoch()); err != nil { // nothing is to be moved
		t.Fatal(err)
	}
	for _, m := range from.Cells.Members() {
		must(client.Set(ctx, m.Namespace.Volume(), "volume of "+m.Name, 0).Result())(t)
	}
	perCell := map[string]int{}
	for i := 0; len(perCell) < 2 || perCell["eu-1"] < 2; i++ {
		name := fmt.Sprint("acme/r", i)
		cell := must(from.Cells.Of(path(t, name)))(t)
		if perCell[cell.Name]++; perCell[cell.Name] == 2 && cell.Name == "eu-1" {
			must(d.Adopt(ctx, path(t, name), "eu-2"))(t)
			cell = must(from.Cells.Of(path(t, name)))(t)
		}
		fillCell(t, client, cell, name)
	}
	must(errorless(access.NewTokens(client, directoryPrefix).Create(ctx, "docs")))(t)
	return from, d
}

func errorless(_ access.Token, secret string, err error) (string, error) { return secret, err }

// fillCell adds a watch and state of a repository to a cell.
func fillCell(t *testing.T, client redis.UniversalClient, cell cells.Member, name string) {
	t.Helper()
	w := must(watch.New(watch.Watch{App: "docs", URL: "https://git.example.com/" + name + ".git"}))(t)
	must(watch.NewRegistry(client, cell.Namespace).Put(t.Context(), w))(t)
	must(client.HSet(t.Context(), cell.Namespace.Repo(w.Repo), "repo", name, "synced", "2026-11-23T10:00:00Z", "head:refs/heads/main", newer, "given:refs/heads/main:docs", newer).Result())(t)
}

func exportAll(t *testing.T, from Deployment) string {
	t.Helper()
	var out bytes.Buffer
	must(Export(t.Context(), from, "v1", &out))(t)
	must(0, errorOf(Check(bytes.NewReader(out.Bytes()))))(t)
	return out.String()
}

func importAll(t *testing.T, to Deployment, document string, cfg ImportConfig) Summary {
	t.Helper()
	return must(Import(t.Context(), to, strings.NewReader(document), cfg))(t)
}

// places returns the cell of each watched repository, by what the cells have and by the directory.
func places(t *testing.T, d Deployment) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range d.Cells.Members() {
		for one, err := range watch.NewRegistry(d.Redis, m.Namespace).All(t.Context()) {
			must(0, err)(t)
			placed := must(d.Cells.Of(one.Repo))(t)
			state := must(d.Redis.HGet(t.Context(), m.Namespace.Repo(one.Repo), "given:refs/heads/main:docs").Result())(t)
			found[one.Repo.String()] = fmt.Sprint(m.Name, placed.Name, state, d.Cells.Directory().PinnedTo(one.Repo, m.Name))
		}
	}
	return found
}

func TestCellsAndTheirDirectoryAreRestored(t *testing.T) {
	t.Parallel()
	from, lost := twoCells(t, redistest.Start(t).Client())
	document := exportAll(t, from)
	client := redistest.Start(t).Client()
	to, restored := directory(t, client)
	planned := importAll(t, to, document, ImportConfig{DryRun: true})
	if keys := must(client.Keys(t.Context(), "*").Result())(t); len(keys) > 0 {
		t.Errorf("a dry run adds %v", keys)
	}
	summary := importAll(t, to, document, ImportConfig{})
	planned.DryRun = false
	if n := len(places(t, from)); summary != planned || summary.Cells != 2 || summary.Watches != n || summary.States != n || summary.Tokens != 1 {
		t.Errorf("imported %+v of %d repositories, planned %+v", summary, n, planned)
	}
	if was, is := places(t, from), places(t, to); !maps.Equal(was, is) || !strings.Contains(strings.Join(slices.Collect(maps.Values(is)), " "), "true") {
		t.Errorf("repositories are in %v, want %v with a pinned one", is, was)
	}
	records := func(d *cells.Directory) (all []string) {
		for _, c := range d.Cells() {
			all = append(all, fmt.Sprint(c.Name, c.Prefix, c.Weight, c.Placed, c.State))
		}
		return all
	}
	if was, is := records(lost), records(restored); !slices.Equal(was, is) {
		t.Errorf("the directory is %v, want %v", is, was)
	}
	if again := importAll(t, to, document, ImportConfig{}); again != (Summary{Repos: summary.Repos, Unchanged: 2*summary.Repos + 1}) {
		t.Errorf("imported again: %+v", again)
	}
	if exported := exportAll(t, to); !slices.Equal(body(exported), body(document)) {
		t.Errorf("exported again:\n%s\nwant\n%s", exported, document)
	}
}

// TestRepositoryOfAnotherCellNow imports into a directory that was used meanwhile: a repository that has moved stays there, without the
// state of the former volume, and one that no cell knows is placed where it was.
func TestRepositoryOfAnotherCellNow(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.Start(t).Client()
	from, d := twoCells(t, client)
	document := exportAll(t, from)
	was := places(t, from)
	var moved events.RepoPath
	for name, at := range was {
		repo := path(t, name)
		cell := must(from.Cells.Of(repo))(t)
		must(client.Del(ctx, cell.Namespace.Repo(repo)).Result())(t)
		must(watch.NewRegistry(client, cell.Namespace).Remove(ctx, watch.Key{App: "docs", Repo: repo}))(t)
		if moved.IsZero() && strings.HasPrefix(at, "eu-1") {
			moved = repo
			must(d.Flip(ctx, repo, "eu-1", "eu-2"))(t)
			other := must(watch.New(watch.Watch{App: "ci", URL: "https://git.example.com/" + name + ".git"}))(t)
			there, _ := from.Cells.Cell("eu-2")
			must(watch.NewRegistry(client, there.Namespace).Put(ctx, other))(t)
			must(client.HSet(ctx, there.Namespace.Repo(repo), "repo", name, "given:refs/heads/main:docs", older).Result())(t)
		} else if _, err := d.Unpin(ctx, repo); err != nil {
			t.Fatal(err)
		}
	}
	summary := importAll(t, from, document, ImportConfig{})
	if n := len(was); summary.Cells != 0 || summary.Watches != n || summary.States != n-1 {
		t.Errorf("imported %+v of %d repositories", summary, n)
	}
	was[moved.String()] = fmt.Sprint("eu-2", "eu-2", older, false)
	if is := places(t, from); !maps.Equal(was, is) {
		t.Errorf("repositories are in %v, want %v", is, was)
	}
}

func TestOneOfTheCellsIsImported(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	from, _ := twoCells(t, redistest.Start(t).Client())
	document := exportAll(t, from)
	client := redistest.Start(t).Client()
	only, _ := from.Cells.Cell("eu-2")
	to := Deployment{Redis: client, Cells: cells.Single(client, only), Tokens: directoryPrefix}
	n := 0
	for _, at := range places(t, from) {
		if strings.HasPrefix(at, "eu-2") {
			n++
		}
	}
	if summary := importAll(t, to, document, ImportConfig{}); summary.Repos != n || summary.Watches != n || summary.States != n || summary.Cells != 0 {
		t.Errorf("imported %+v, want the %d repositories of one cell", summary, n)
	}
	if volume := must(client.Get(ctx, only.Namespace.Volume()).Result())(t); volume != "volume of eu-2" {
		t.Errorf("bound to %q", volume)
	}
}

func TestDocumentsOfCellsAndOfOneDeploymentAreNotMixedUp(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	fill(t, client)
	one := export(t, client)
	withCells := redistest.Start(t).Client()
	several, _ := twoCells(t, withCells)
	all := exportAll(t, several)
	before := dump(t, withCells)
	for name, tc := range map[string]struct {
		document string
		to       Deployment
		want     error
	}{
		"cells into one deployment":   {all, single(redistest.Start(t).Client()), ErrCells},
		"one deployment into cells":   {one, several, ErrCells},
		"a cell of another volume":    {strings.Replace(all, "volume of eu-2", "volume of another", 1), several, ErrOtherVolume},
		"a cell that is not in there": {all, Deployment{Redis: client, Cells: cells.Single(client, cells.Member{Name: "us-1", Namespace: "us:"}), Tokens: namespace}, ErrCells},
	} {
		if _, err := Import(t.Context(), tc.to, strings.NewReader(tc.document), ImportConfig{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if after := dump(t, withCells); !maps.Equal(before, after) {
		t.Errorf("something was imported: %v", after)
	}
}
