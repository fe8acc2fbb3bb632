package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// joining is a deployment of four cells with many repositories, to which pushes are made while a fifth cell joins.
type joining struct {
	*cellRig
	cluster *redistest.Cluster
	repos   []events.RepoPath
	homes   []*cellUnderTest // of each repository, before the fifth cell joins
	workers map[string]*proctest.Process
	readers map[string]*proctest.Process

	contents map[string]string // of the file that the last push wrote, by repository

	mu     sync.Mutex
	sent   []sentPush
	failed int       // attempts to publish that got no confirmation, which may have added an entry all the same
	killed time.Time // when a master was killed
	deaths bool      // workers were killed, which may have been fetching
}

// sentPush is a push that a replica has confirmed.
type sentPush struct {
	repo int // index
	id   string
	at   time.Time
}

var joinedCells = []string{"eu-1", "eu-2", "eu-3", "eu-4"}

// TestCellJoinsUnderLoad adds a fifth cell to four on a Redis Cluster with replicas while pushes go on. A fifth of the repositories moves, no
// push is lost or answered twice, no app sees a hole, and each repository that moves is fetched once. The latencies are logged: they need a quiet machine.
// LOCKSTEP_SOAK=1, without the race detector, has 10,000 repositories.
func TestCellJoinsUnderLoad(t *testing.T) {
	testenv.Long(t)
	j := startJoining(t, sized(40, 10_000))
	began := j.pushUntil(time.Now().Add(testenv.Soak(3*time.Second, 4*time.Minute)), nil)
	calm := len(j.sent)
	t.Logf("calm: %d pushes in %v", calm, time.Since(began).Round(time.Second))

	j.awaitAnswers() // the remotes have been asked for these pushes
	asked := j.asked()
	fifth := j.addWeighted("eu-5", sized(9*cells.DefaultWeight, cells.DefaultWeight)) // of few repositories, enough have to move
	j.workers[fifth.name] = j.startWorker(fifth)
	j.workers[fifth.name].AwaitLog("worker takes changes")
	j.readers[fifth.name] = j.startReader(fifth)
	began = j.pushUntil(time.Time{}, j.isSettled)
	t.Logf("joined in %v, with %d pushes", time.Since(began).Round(time.Second), len(j.sent)-calm)
	j.check(fifth, asked, calm)
}

// TestCellJoinsWhateverDies is the same while workers of the other cells are killed after random steps of their moves. At the moments of their
// death, the worker of the fifth cell and readers are killed too, and once a master of the cluster.
func TestCellJoinsWhateverDies(t *testing.T) {
	testenv.Long(t)
	j := startJoining(t, sized(40, 10_000))
	asked := j.asked()
	j.deaths = true
	for _, name := range joinedCells {
		j.plan(name, false)
	}
	fifth := j.addWeighted("eu-5", sized(9*cells.DefaultWeight, cells.DefaultWeight)) // of few repositories, enough have to move
	j.workers[fifth.name] = j.startWorker(fifth)
	j.workers[fifth.name].AwaitLog("worker takes changes")
	j.readers[fifth.name] = j.startReader(fifth)
	kills := map[string]int{}
	joined := make(chan struct{})
	go func() {
		defer close(joined) // also after a failure, which ends this goroutine
		j.killAll(fifth, sized(12, 300), kills)
	}()
	defer func() { <-joined }()
	j.pushUntil(time.Time{}, func() bool {
		select {
		case <-joined:
			return t.Failed() || j.isSettled()
		default:
			return false
		}
	})
	t.Logf("killed: %v", kills)
	if len(kills) < 5 || kills["masters"] != 1 || kills["workers of eu-5"] == 0 || kills["readers"] == 0 {
		t.Errorf("killed %v, want a master, workers and readers", kills)
	}
	j.check(fifth, asked, len(j.repos)) // without the first clones
}

// sized returns a number of the soak test, or of the usual test.
func sized(usual, soak int) int {
	if testenv.Soaking() && !testenv.UnderRace() {
		return soak
	}
	return usual
}

// startJoining starts four cells and waits until they have published all repositories.
func startJoining(t *testing.T, n int) *joining {
	t.Helper()
	cluster := redistest.StartCluster(t)
	cluster.AddReplicas()
	for _, node := range append(cluster.Nodes, cluster.Replicas...) {
		proctest.Must(0, node.Client().ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())(t)
	}
	j := &joining{
		cellRig: startCellsAt(t, cluster, joinedCells...), cluster: cluster,
		workers: map[string]*proctest.Process{}, readers: map[string]*proctest.Process{}, contents: map[string]string{},
	}
	began := time.Now()
	j.createAll(n)
	t.Logf("%d repositories created in %v", n, time.Since(began).Round(time.Second))
	began = time.Now()
	for _, name := range joinedCells {
		j.workers[name] = j.startWorker(j.cells[name])
		j.workers[name].AwaitLog("worker takes changes")
		j.readers[name] = j.startReader(j.cells[name])
	}
	for i, repo := range j.repos {
		commit := j.git.Head(repo.String(), "refs/heads/main")
		proctest.Must(0, j.publish(t.Context(), j.homes[i], i, commit))(t)
	}
	j.awaitAnswers()
	j.awaitIdle()
	t.Logf("%d repositories cloned in %v", n, time.Since(began).Round(time.Second))
	return j
}

// createAll creates and watches n repositories, with their history: a change that is forwarded may come after a later one.
// One of 50 has a thousand files.
func (j *joining) createAll(n int) {
	j.Helper()
	large := map[string]string{"a": "0"}
	for i := range 1000 {
		large[fmt.Sprintf("dir-%d/file-%d.txt", i%20, i)] = strings.Repeat(fmt.Sprintln("line", i), 20)
	}
	templates := []string{"template/small", "template/large"}
	proctest.Must(j.git.Create(j.Context(), templates[0], map[string]string{"a": "0", "README": "small"}))(j.T)
	proctest.Must(j.git.Create(j.Context(), templates[1], large))(j.T)
	selector := proctest.Must(watch.ParseSelector("main"))(j.T)
	for i := range n {
		repo := proctest.Must(events.ParseRepoPath(fmt.Sprintf("acme/repo-%d", i)))(j.T)
		template := templates[0]
		if i%50 == 49 {
			template = templates[1]
		}
		proctest.Must(0, os.CopyFS(j.git.Dir(repo.String()), os.DirFS(j.git.Dir(template))))(j)
		home := j.cells[j.directory.Place(repo).Name]
		w := proctest.Must(watch.New(watch.Watch{App: "search", URL: j.git.URL(repo.String()), Ref: selector, Depth: events.DepthFull, Poll: watch.Never}))(j.T)
		proctest.Must(home.watches.Put(j.Context(), w))(j.T)
		j.repos, j.homes, j.contents[repo.String()] = append(j.repos, repo), append(j.homes, home), "0"
	}
}

// publish adds a change to the stream of a cell, until a replica has it.
func (j *joining) publish(ctx context.Context, to *cellUnderTest, repo int, commit string) error {
	path := j.repos[repo]
	at, id := time.Now(), ""
	for {
		id = uuid.NewString() // another one each time: an attempt without confirmation may have added an entry
		change, err := events.NewChange(events.Change{
			ID: id, Source: "/test", App: "search", Watched: true, Repo: path, Ref: mainRef, URL: j.git.URL(path.String()), After: commit,
		})
		if err != nil {
			return err
		}
		msg, err := changes.Message(change)
		if err != nil {
			return err
		}
		fields, err := stream.Fields(msg)
		if err != nil {
			return err
		}
		if err = j.confirmed(ctx, to.namespace.Changes(), fields); err == nil {
			break
		}
		if time.Since(at) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("publish: %w", err)
		}
		j.mu.Lock()
		j.failed++
		j.mu.Unlock()
		j.client.(*redis.ClusterClient).ReloadState(ctx) // MasterForKey does not notice that its master is gone
		time.Sleep(100 * time.Millisecond)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sent = append(j.sent, sentPush{repo, id, at})
	return nil
}

// confirmed adds an entry, and waits until a replica has it.
func (j *joining) confirmed(ctx context.Context, stream string, fields []string) error {
	master, err := j.client.(*redis.ClusterClient).MasterForKey(ctx, stream)
	if err != nil {
		return err
	}
	conn := master.Conn()
	defer conn.Close()
	if err := conn.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: fields}).Err(); err != nil {
		return err
	}
	n, err := conn.Wait(ctx, 1, 5*time.Second).Result()
	if err == nil && n == 0 {
		err = errors.New("no replica has the entry")
	}
	return err
}

const pushEvery = 200 * time.Millisecond

// pushUntil pushes to random repositories, but each third one, until a time, or until done, which is asked once in a while. As receivers do, it publishes to the
// cell where a copy of the directory places the repository; the copy may be old. Some pushes go to any cell.
func (j *joining) pushUntil(end time.Time, done func() bool) (began time.Time) {
	j.Helper()
	ctx, began, asked := j.Context(), time.Now(), time.Now()
	names := append(joinedCells[:len(joinedCells):len(joinedCells)], "eu-5")[:len(j.cells)]
	ticker := time.NewTicker(pushEvery)
	defer ticker.Stop()
	for range ticker.C {
		if time.Since(began) > 40*time.Minute {
			j.Fatal("no end after 40 minutes")
		}
		if done == nil && time.Now().After(end) || done != nil && time.Since(asked) > time.Second && done() {
			return began
		}
		if time.Since(asked) > time.Second {
			asked = time.Now()
		}
		i := rand.N(len(j.repos))
		i -= i % 3 / 2 // never to each third one: it is fetched for its move only
		repo := j.repos[i].String()
		j.contents[repo] = uuid.NewString()
		commit, err := j.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": j.contents[repo]}})
		if err != nil {
			j.Fatal(err)
		}
		to := j.cells[j.directory.Place(j.repos[i]).Name]
		if rand.N(4) == 0 {
			to = j.cells[names[rand.N(len(names))]]
		}
		proctest.Must(0, j.publish(ctx, to, i, commit))(j)
	}
	return began
}

func (j *joining) isSettled() bool {
	return j.directory.Refresh(context.Background()) == nil && !j.directory.Pending()
}

// killAll kills n processes while the fifth cell joins, and starts each again.
func (j *joining) killAll(fifth *cellUnderTest, n int, kills map[string]int) {
	steps := []string{"marked", "activated", "flipped", "requested", "done"}
	dir, count := j.TempDir(), 0
	perDeath := max(1, len(j.repos)/5*3/n) // so that moves are left until the last kill
	for count < n {
		step, name := steps[count/2%len(steps)], joinedCells[rand.N(len(joinedCells))]
		j.workers[name].Kill()
		j.plan(name, true)
		died, err := runUntilKilled(dir, j.args(j.cells[name]), "move "+step, 1+rand.N(perDeath), time.Duration(sized(10, 20))*time.Second)
		j.plan(name, false)
		if err != nil {
			j.Error(err)
			return
		}
		if died {
			kills["workers after "+step]++
		} else {
			kills["workers at any time"]++
		}
		j.workers[name] = j.startWorker(j.cells[name])
		switch count / 2 % 4 {
		case 0, 2:
			j.workers[fifth.name].Kill()
			j.workers[fifth.name] = j.startWorker(fifth)
			kills["workers of eu-5"]++
		case 1, 3:
			j.readers[name].Kill()
			j.readers[name] = j.startReader(j.cells[name])
			kills["readers"]++
		}
		if count += 2; kills["masters"] == 0 && count >= n/2 {
			slot := j.client.ClusterKeySlot(j.Context(), string(j.cells["eu-1"].namespace)).Val()
			j.mu.Lock()
			j.killed = time.Now()
			j.mu.Unlock()
			j.cluster.Fail(int(slot * 3 / 16384))
			kills["masters"]++
			count++
		}
	}
	for _, name := range joinedCells {
		j.plan(name, true)
	}
}

// plan lets the workers of a cell plan moves, or keeps them from it, so that those do that are killed.
func (j *joining) plan(cell string, may bool) {
	key := j.cells[cell].namespace.Rebalance()
	if may {
		j.client.Del(j.Context(), key)
		return
	}
	j.client.Set(j.Context(), key, "test", time.Hour)
}

// answer is a result of a repository in a cell.
type answer struct {
	events.Result
	cell *cellUnderTest
	at   time.Time
}

// answers returns the results of all cells, by repository and in the order of each stream.
func (j *joining) answers() map[string][]answer {
	j.Helper()
	byRepo := map[string][]answer{}
	for _, c := range j.cells {
		for from := "-"; ; {
			page, err := j.client.XRangeN(j.Context(), c.namespace.Results(), from, "+", 1000).Result()
			if err != nil {
				j.Logf("results of %s: %v", c.name, err)
				break
			}
			for _, entry := range page {
				result := proctest.DecodeResult(j.T, entry)
				ms, _, _ := strings.Cut(entry.ID, "-")
				at := time.UnixMilli(proctest.Must(strconv.ParseInt(ms, 10, 64))(j.T))
				if result.Type != events.ResultPolled {
					byRepo[result.Repo.Key()] = append(byRepo[result.Repo.Key()], answer{result, c, at})
				}
				from = "(" + entry.ID
			}
			if len(page) == 0 {
				break
			}
		}
	}
	return byRepo
}

// awaitAnswers waits until every push has a result.
func (j *joining) awaitAnswers() (found map[string][]answer) {
	j.Helper()
	j.repairForwards()
	j.awaitNone("pushes without a result", func() (left int64) {
		found = j.answers()
		return int64(len(j.unanswered(found)))
	})
	return found
}

// repairForwards does what the next push or poll would do: a cell adds a change that it forwards to a master that may be killed before its
// replica has it, which guarantees.md allows. The pushes that were lost so are sent again. A change that is forwarded after a later one is
// not lost: it is looked for between one and two minutes.
func (j *joining) repairForwards() {
	j.Helper()
	if j.killed.IsZero() {
		return
	}
	lost := j.unanswered(j.answers())
	for end := time.Now().Add(3 * time.Minute); len(lost) > 0 && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		lost = j.unanswered(j.answers())
	}
	for _, p := range lost {
		if early := j.killed.Sub(p.at); early < 0 || len(lost) > 2 {
			j.Fatalf("%d pushes have no result, one made %v before a master was killed", len(lost), early)
		}
		j.Logf("%s: a forwarded change was lost with the master", j.repos[p.repo])
		j.sent = slices.DeleteFunc(j.sent, func(sent sentPush) bool { return sent.id == p.id })
		i := p.repo
		head := j.git.Head(j.repos[i].String(), "refs/heads/main")
		proctest.Must(0, j.publish(j.Context(), j.cells[j.directory.Place(j.repos[i]).Name], i, head))(j)
	}
}

// awaitIdle waits until no change is left to do: the first polls of the watches ask the remotes, too.
func (j *joining) awaitIdle() {
	j.Helper()
	j.awaitNone("changes to do", func() (left int64) {
		for _, cell := range j.cells {
			for _, group := range proctest.Must(j.client.XInfoGroups(j.Context(), cell.namespace.Changes()).Result())(j.T) {
				left += group.Pending + group.Lag
			}
		}
		return left
	})
}

// awaitNone waits until count returns 0. It fails if that has not become less for three minutes.
func (j *joining) awaitNone(of string, count func() int64) {
	j.Helper()
	least := int64(math.MaxInt64)
	for progress := time.Now(); time.Since(progress) < 3*time.Minute; time.Sleep(500 * time.Millisecond) {
		left := count()
		if left == 0 {
			return
		}
		if left < least {
			least, progress = left, time.Now()
		}
	}
	j.Fatalf("%d %s are left, and not fewer for three minutes", least, of)
}

// unanswered returns the pushes without a result.
func (j *joining) unanswered(found map[string][]answer) (left []sentPush) {
	counts := countAnswers(found)
	for _, p := range j.sent {
		if counts[p.id] == 0 {
			left = append(left, p)
		}
	}
	return left
}

func countAnswers(found map[string][]answer) map[string]int {
	counts := map[string]int{}
	for _, answers := range found {
		for _, a := range answers {
			for _, id := range a.Deliveries {
				counts[id]++
			}
		}
	}
	return counts
}

// asked returns how often each repository was fetched.
func (j *joining) asked() []int {
	asked := make([]int, len(j.repos))
	for i, repo := range j.repos {
		asked[i] = j.git.Stats(repo.String()).UploadPacks
	}
	return asked
}

// check checks what the join of the fifth cell must not have changed. Pushes from number calm on were made while it joined.
func (j *joining) check(fifth *cellUnderTest, asked []int, calm int) {
	j.Helper()
	found := j.awaitAnswers()
	j.awaitIdle()
	now := j.asked()
	counts, doubled := countAnswers(found), 0
	pushed := map[int]int{}
	for n, p := range j.sent {
		if counts[p.id] != 1 {
			doubled++
		}
		if n >= calm {
			pushed[p.repo]++
		}
	}
	moved, holes, fetches, unpushed := 0, 0, 0, 0
	for i, repo := range j.repos {
		order := []*cellUnderTest{j.homes[i]}
		if j.directory.Place(repo).Name == fifth.name {
			order = append(order, fifth)
			moved++
			if pushed[i] == 0 {
				if fetches += now[i] - asked[i]; now[i] == asked[i] {
					j.Errorf("%s was not fetched by its new cell", repo)
				}
				unpushed++
			}
		}
		if err := j.chain(i, found[repo.Key()], order); err != nil {
			holes++
			j.Error(err)
		}
		j.checkTree(order[len(order)-1], i)
	}
	share := float64(moved) / float64(len(j.repos))
	j.Logf("%d of %d repositories have moved: %.1f %%; %d pushes, lost 0, with more than one result %d; holes %d; %d moved without a push, fetched %d times; %d attempts without confirmation",
		moved, len(j.repos), 100*share, len(j.sent), doubled, holes, unpushed, fetches, j.failed)
	if doubled > 0 || fetches > unpushed && !j.deaths || unpushed == 0 {
		j.Errorf("%d doubled, %d fetches for moves of %d repositories", doubled, fetches, unpushed)
	}
	if len(j.repos) >= 10_000 && (share < 0.18 || share > 0.22) {
		j.Errorf("%.1f %% of the repositories have moved, want 18 to 22", 100*share)
	}
}

// chain checks that the results of a repository go from commit to commit, through cells in order, up to its head.
func (j *joining) chain(i int, answers []answer, order []*cellUnderTest) error {
	repo, before := j.repos[i], ""
	for _, cell := range order {
		for _, a := range answers {
			if a.cell != cell {
				continue
			}
			switch {
			case a.Type != events.ResultSynced:
				return fmt.Errorf("%s in %s: result %s: %s", repo, cell.name, a.Type, a.Error)
			case a.Before != before:
				return fmt.Errorf("%s in %s: result from %.12q to %.12q, want from %.12q", repo, cell.name, a.Before, a.After, before)
			}
			before = a.After
		}
	}
	for _, a := range answers {
		if a.cell != order[0] && a.cell != order[len(order)-1] {
			return fmt.Errorf("%s has a result in %s", repo, a.cell.name)
		}
	}
	if head := j.git.Head(repo.String(), "refs/heads/main"); before != head {
		return fmt.Errorf("%s: the last result is %.12q, want %.12q", repo, before, head)
	}
	return nil
}

// checkTree checks that a cell has the head of a repository.
func (j *joining) checkTree(cell *cellUnderTest, i int) {
	j.Helper()
	repo := j.repos[i].String()
	got, err := os.ReadFile(filepath.Join(cell.root, repo, "a"))
	if err != nil {
		j.Errorf("%s in %s: %v", repo, cell.name, err)
		return
	}
	if want := j.contents[repo]; string(got) != want {
		j.Errorf("%s in %s has %q, want %q", repo, cell.name, got, want)
	}
}
