package backup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

const directoryPrefix = cells.DefaultPrefix

// directory is a deployment of the cells of a directory, which may be empty.
func directory(t *testing.T, client redis.UniversalClient) (Deployment, *cells.Directory) {
	t.Helper()
	d := must(cells.OpenOrNew(t.Context(), client))(t)
	return Deployment{Redis: client, Cells: cells.All(client, d), Tokens: directoryPrefix}, d
}

// emptyCells is a directory of two cells of different weights, with a volume each.
func emptyCells(t *testing.T, client redis.UniversalClient) (Deployment, *cells.Directory) {
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
	return from, d
}

// twoCells has a repository on each of two cells, one that is pinned to the cell that its path does not have, and a token.
func twoCells(t *testing.T, client redis.UniversalClient) (Deployment, *cells.Directory) {
	t.Helper()
	ctx := t.Context()
	from, d := emptyCells(t, client)
	perCell := map[string]int{}
	for i := 0; len(perCell) < 2 || perCell["eu-1"] < 2; i++ {
		name := fmt.Sprint("acme/r", i)
		cell := must(from.Cells.Of(path(t, name)))(t)
		if perCell[cell.Name]++; perCell[cell.Name] == 2 && cell.Name == "eu-1" {
			must(0, d.Override(ctx, path(t, name), "", "eu-2", true))(t)
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
	return written(t, from)
}

func importAll(t *testing.T, to Deployment, document string) Summary {
	t.Helper()
	return must(Import(t.Context(), to, must(Parse([]byte(document)))(t)))(t)
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
	n := len(places(t, from))
	wantSummary(t, importAll(t, to, document), Summary{Cells: 2, Watches: n, States: n, Tokens: 1})
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
	wantSummary(t, importAll(t, to, document), Summary{Unchanged: n + 1})
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
			must(0, d.Override(ctx, repo, "eu-1", "eu-2", false))(t)
			other := must(watch.New(watch.Watch{App: "ci", URL: "https://git.example.com/" + name + ".git"}))(t)
			there, _ := from.Cells.Cell("eu-2")
			must(watch.NewRegistry(client, there.Namespace).Put(ctx, other))(t)
			must(client.HSet(ctx, there.Namespace.Repo(repo), "repo", name, "given:refs/heads/main:docs", older).Result())(t)
		}
	}
	summary := importAll(t, from, document)
	if n := len(was); summary.Cells != 0 || summary.Watches != n || summary.States != n-1 {
		t.Errorf("imported %+v of %d repositories", summary, n)
	}
	was[moved.String()] = fmt.Sprint("eu-2", "eu-2", older, false)
	if is := places(t, from); !maps.Equal(was, is) {
		t.Errorf("repositories are in %v, want %v", is, was)
	}
}

func TestDocumentOfCellsIsNotImportedIntoOne(t *testing.T) {
	t.Parallel()
	client, withCells := redistest.Start(t).Client(), redistest.Start(t).Client()
	several, _ := twoCells(t, withCells)
	all := exportAll(t, several)
	for name, to := range map[string]Deployment{
		"cells into one deployment": single(client),
		"cells into one of them":    {Redis: client, Cells: cells.Single(client, cells.Member{Name: "eu-1", Namespace: "us:"}), Tokens: namespace},
	} {
		if _, err := Import(t.Context(), to, must(Parse([]byte(all)))(t)); !errors.Is(err, ErrCells) || len(dump(t, client)) > 0 {
			t.Errorf("%s: %v, imported %v", name, err, dump(t, client))
		}
	}
}

// TestOneDeploymentIsImportedIntoCells places each repository by the directory.
func TestOneDeploymentIsImportedIntoCells(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	fill(t, client)
	to, _ := emptyCells(t, redistest.Start(t).Client())
	if s := importAll(t, to, export(t, client)); s.Watches != 4 || s.Tokens != 1 || len(s.Conflicts) > 0 {
		t.Errorf("imported %+v", s)
	}
	for name, m := range placedWatches(t, to) {
		if placed := must(to.Cells.Of(path(t, name)))(t); placed != m {
			t.Errorf("%s is watched in %v, and placed in %v", name, m, placed)
		}
	}
}

func placedWatches(t *testing.T, d Deployment) map[string]cells.Member {
	t.Helper()
	found := map[string]cells.Member{}
	for _, m := range d.Cells.Members() {
		for one, err := range watch.NewRegistry(d.Redis, m.Namespace).All(t.Context()) {
			must(0, err)(t)
			found[one.Repo.String()] = m
		}
	}
	return found
}

// oneRepository has a repository in the first of two cells.
func oneRepository(t *testing.T, client redis.UniversalClient) (Deployment, events.RepoPath) {
	t.Helper()
	d, _ := emptyCells(t, client)
	repo := placedIn(t, d, "eu-1")
	fillCell(t, client, member(t, d, "eu-1"), repo.String())
	return d, repo
}

func placedIn(t *testing.T, d Deployment, cell string) events.RepoPath {
	t.Helper()
	for i := 0; ; i++ {
		if repo := path(t, fmt.Sprint("acme/r", i)); must(d.Cells.Of(repo))(t).Name == cell {
			return repo
		}
	}
}

func member(t *testing.T, d Deployment, name string) cells.Member {
	t.Helper()
	m, ok := d.Cells.Cell(name)
	if !ok {
		t.Fatalf("no cell %s", name)
	}
	return m
}

// moveTo leaves what a move leaves. The old cell keeps the watches for a while, until it is vacated.
func moveTo(t *testing.T, client redis.UniversalClient, d Deployment, repo events.RepoPath, from, to string, vacated bool) {
	t.Helper()
	ctx, old := t.Context(), member(t, d, from)
	must(0, d.Cells.Directory().Override(ctx, repo, from, to, false))(t)
	fillCell(t, client, member(t, d, to), repo.String())
	if vacated {
		must(client.Del(ctx, old.Namespace.Repo(repo)).Result())(t)
	}
	must(client.HSet(ctx, old.Namespace.Repo(repo), "cell", "moved "+to+" 3 0-0", "repo", repo.String()).Result())(t)
	if vacated {
		must(0, watch.NewRegistry(client, old.Namespace).Release(ctx, repo, "moved "+to+" 3"))(t)
	}
}

// lose deletes all keys with a prefix.
func lose(t *testing.T, client redis.UniversalClient, prefix string) {
	t.Helper()
	for _, key := range must(client.Keys(t.Context(), prefix+"*").Result())(t) {
		must(client.Del(t.Context(), key).Result())(t)
	}
}

// assertAt checks that a repository is placed in a cell, which has its watch, and not watched in another one but for what a move has left.
func assertAt(t *testing.T, d Deployment, repo events.RepoPath, cell string, withState bool) {
	t.Helper()
	if placed := must(d.Cells.Of(repo))(t).Name; placed != cell {
		t.Errorf("%s is placed in %s, want %s", repo, placed, cell)
	}
	for _, m := range d.Cells.Members() {
		watched, here, err := d.has(t.Context(), m, repo)
		if has := watched && here; err != nil || has != (m.Name == cell) {
			t.Errorf("%s: cell %s has it: %v, %v", repo, m.Name, has, err)
		}
		known := must(state.NewStore(d.Redis, m.Namespace).Load(t.Context(), repo))(t)
		if given := len(known.AllGiven()) > 0; m.Name == cell && given != withState {
			t.Errorf("%s: cell %s has its state: %v", repo, m.Name, given)
		}
	}
}

func TestLostCellGetsBackWhatHadMovedToIt(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	d, repo := oneRepository(t, client)
	document := exportAll(t, d)
	moveTo(t, client, d, repo, "eu-1", "eu-2", true)
	lose(t, client, string(member(t, d, "eu-2").Namespace))
	if s := importAll(t, d, document); s.Watches != 1 || len(s.Conflicts) > 0 || s.States != 0 {
		t.Errorf("imported %+v", s)
	}
	assertAt(t, d, repo, "eu-2", false) // the state of the other volume is not used
}

func TestLostDirectoryPlacesRepositoriesWhereTheyAre(t *testing.T) {
	t.Parallel()
	for name, exportedAfter := range map[string]bool{"export before the move": false, "export after the move, with the former watches": true} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client()
			d, repo := oneRepository(t, client)
			pinned := path(t, "acme/pinned")
			must(0, d.Cells.Directory().Override(t.Context(), pinned, "", "eu-2", true))(t)
			fillCell(t, client, member(t, d, "eu-2"), pinned.String())
			document := exportAll(t, d)
			moveTo(t, client, d, repo, "eu-1", "eu-2", !exportedAfter)
			if exportedAfter {
				document = exportAll(t, d)
			}
			epoch := d.Cells.Directory().Epoch()
			lose(t, client, string(directoryPrefix))
			to, restored := directory(t, client)
			if s := importAll(t, to, document); s.Cells != 2 || len(s.Conflicts) > 0 || s.Watches != 0 {
				t.Errorf("imported %+v", s)
			}
			assertAt(t, to, repo, "eu-2", true)
			if assertAt(t, to, pinned, "eu-2", true); !restored.PinnedTo(pinned, "eu-2") {
				t.Error("a pin is lost with the directory")
			}
			if restored.Epoch() < epoch {
				t.Errorf("the epoch of the directory is %d after %d: its moves would be older than the last ones", restored.Epoch(), epoch)
			}
		})
	}
}

// onCommand calls a function once, before a command about a key.
type onCommand struct {
	once sync.Once
	key  string
	fn   func()
}

func (h *onCommand) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *onCommand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slices.Contains(cmd.Args(), any(h.key)) {
			h.once.Do(h.fn)
		}
		return next(ctx, cmd)
	}
}

func (h *onCommand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any(h.key)) {
				h.once.Do(h.fn)
			}
		}
		return next(ctx, cmds)
	}
}

func TestRepositoryThatMovesDuringAnExportIsInIt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	d, _ := oneRepository(t, client)
	repo := placedIn(t, d, "eu-2")
	fillCell(t, client, member(t, d, "eu-2"), repo.String())
	hooked := server.Client()
	from := Deployment{Redis: hooked, Cells: cells.All(hooked, must(cells.Open(t.Context(), hooked))(t)), Tokens: directoryPrefix}
	hooked.AddHook(&onCommand{key: member(t, d, "eu-1").Namespace.Results(), fn: func() { moveTo(t, client, d, repo, "eu-2", "eu-1", true) }})
	document := exportAll(t, from)
	if n := strings.Count(document, `"repo":"`+repo.String()+`","cell":"eu-1"`); n != 1 {
		t.Errorf("the repository is %d times in\n%s", n, document)
	}
}

func TestRepositoryBetweenTwoCellsIsExportedWithItsState(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	d, repo := oneRepository(t, client)
	must(client.HSet(t.Context(), member(t, d, "eu-1").Namespace.Repo(repo), "cell", "moved eu-2 3 0-0").Result())(t)
	document := exportAll(t, d)
	to, _ := directory(t, redistest.Start(t).Client())
	if s := importAll(t, to, document); s.Watches != 1 || s.States != 1 {
		t.Errorf("imported %+v", s)
	}
	assertAt(t, to, repo, "eu-1", true)
}

// TestStrayIsNotExported has state of a repository left in a cell by mistake.
func TestStrayIsNotExported(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	d, _ := oneRepository(t, client)
	repo := placedIn(t, d, "eu-2")
	fillCell(t, client, member(t, d, "eu-2"), repo.String())
	must(client.HSet(t.Context(), member(t, d, "eu-1").Namespace.Repo(repo), "repo", repo.String(), "given:refs/heads/main:docs", older).Result())(t)
	to, _ := directory(t, redistest.Start(t).Client())
	importAll(t, to, exportAll(t, d))
	assertAt(t, to, repo, "eu-2", true)
}

// TestImportOfCellsThatWasInterruptedIsRepeated imports a document whose directory is restored, but only some of its repositories.
func TestImportOfCellsThatWasInterruptedIsRepeated(t *testing.T) {
	t.Parallel()
	from, _ := twoCells(t, redistest.Start(t).Client())
	document := exportAll(t, from)
	to, d := directory(t, redistest.Start(t).Client())
	header := must(Parse([]byte(document)))(t)
	must(0, d.Restore(t.Context(), header.Cells, header.Epoch))(t)
	importAll(t, to, document)
	if was, is := places(t, from), places(t, to); !maps.Equal(was, is) {
		t.Errorf("repositories are in %v, want %v", is, was)
	}
}
