package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/status"
	"lockstep/locking"
)

// board counts pushes, changes and results. Changes are registered before they are published, so that the board detects missing
// and duplicate results.
type board struct {
	repos []*sampleRepo // hot repository first
	named map[string]*sampleRepo

	mu       sync.Mutex
	began    time.Time
	waiting  map[string]unsettledChange // unsettled changes by id
	issued   int                        // published changes
	results  int
	doubled  int
	failed   int
	reads    int
	torn     int
	killed   time.Time       // last kill of a worker
	takeover []time.Duration // time from each kill to the successor's lease
	delayed  []time.Duration // latencies of changes that waited for a killed worker
}

// sampleRepo is a sample repository. board.mu guards everything except name and path.
type sampleRepo struct {
	name string
	path events.RepoPath

	commits   map[string]int // push number by commit
	numbers   int            // pushes begun
	pushes    int            // pushes made
	published int            // push number of the published tree
	changes   int
	waiting   int
	last      time.Duration
	latencies []time.Duration // from push to result
	lock      locking.Status
	stalled   bool            // a killed worker holds the lease
	before    gitserver.Stats // counters before the first push
}

type unsettledChange struct {
	repo    *sampleRepo
	at      time.Time
	delayed bool
}

func newBoard(names []string) *board {
	b := &board{began: time.Now(), waiting: map[string]unsettledChange{}, named: map[string]*sampleRepo{}}
	for _, name := range names {
		path, _ := events.ParseRepoPath(name)
		repo := &sampleRepo{name: name, path: path, commits: map[string]int{}}
		b.repos, b.named[name] = append(b.repos, repo), repo
	}
	return b
}

func (b *board) hot() *sampleRepo { return b.repos[0] }

func (b *board) created(repo, commit string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[repo].commits[commit] = 0
}

// open records the Git server's counters before the first push.
func (b *board) open(statsOf func(repo string) gitserver.Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, repo := range b.repos {
		repo.before = statsOf(repo.name)
	}
}

// nextPush returns the number of the next push.
func (b *board) nextPush(repo string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[repo].numbers++
	return b.named[repo].numbers
}

// numberOf returns the push number of a commit.
func (b *board) numberOf(repo, commit string) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	number, ok := b.named[repo].commits[commit]
	return number, ok
}

// pushed records a push and returns the ids of the changes to publish for it.
func (b *board) pushed(name string, number int, commit string, changes int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	repo := b.named[name]
	repo.commits[commit] = number
	repo.pushes++
	ids := make([]string, changes)
	for i := range ids {
		b.issued++
		ids[i] = changeIDPrefix + strconv.Itoa(b.issued)
		b.waiting[ids[i]] = unsettledChange{repo, time.Now(), repo.stalled}
		repo.changes++
		repo.waiting++
	}
	return ids
}

const changeIDPrefix = "demo-" // followed by a number

// settled records a result and when it was settled.
func (b *board) settled(result events.Result, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range result.Deliveries {
		change, ok := b.waiting[id]
		switch {
		case ok:
		case strings.HasPrefix(id, changeIDPrefix):
			b.doubled++
			continue
		default:
			continue // published by the registry for a new watch
		}
		delete(b.waiting, id)
		repo, took := change.repo, max(0, at.Sub(change.at))
		b.results++
		repo.waiting--
		repo.last = took
		repo.stalled = repo.stalled && !at.After(b.killed)
		if change.delayed {
			b.delayed = append(b.delayed, took)
		} else {
			repo.latencies = append(repo.latencies, took)
		}
		if result.Type != events.ResultSynced {
			b.failed++
		}
		repo.published = max(repo.published, repo.commits[result.After])
	}
}

// stall records that a worker was killed while it held these repositories. The worker may have held all current changes; later
// changes of these repositories wait for the lease until another worker has settled one.
func (b *board) stall(at time.Time, held []*sampleRepo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = at
	for _, repo := range held {
		repo.stalled = true
	}
	for id, change := range b.waiting {
		change.delayed = true
		b.waiting[id] = change
	}
}

// resume records a takeover and returns how many changes of the hot repository wait for the new worker.
func (b *board) resume(after time.Duration) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.takeover = append(b.takeover, after)
	return b.hot().waiting
}

// readOne records a read of a tree and reports whether to log the error: only the first ten are.
func (b *board) readOne(err error) (log bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	if err != nil {
		b.torn++
	}
	return err != nil && b.torn <= 10
}

func (b *board) unsettled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

func (b *board) pushes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pushesLocked()
}

func (b *board) pushesLocked() (n int) {
	for _, repo := range b.repos {
		n += repo.pushes
	}
	return n
}

// hotShare returns the percentage of pushes that went to the hot repository.
func (b *board) hotShare() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return 100 * float64(b.hot().pushes) / float64(max(1, b.pushesLocked()))
}

// follow records results until ctx is done.
func (d *demo) follow(ctx context.Context) error {
	client := d.redis.Open() // not shared: reads block
	defer client.Close()
	for from := "0"; ctx.Err() == nil; {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 100, Block: 100 * time.Millisecond}).Result()
		if errors.Is(err, redis.Nil) || redisx.Unavailable(err) || ctx.Err() != nil {
			continue // the embedded Redis is just slow
		}
		if err != nil {
			return fmt.Errorf("demo: follow the results: %w", err)
		}
		for _, entry := range read[0].Messages {
			from = entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			if err != nil {
				return fmt.Errorf("demo: result %s: %w", entry.ID, err)
			}
			d.board.settled(result, events.EntryTime(entry.ID))
			if result.Type == events.ResultFailed {
				d.view.event("FAILED: %s", status.ResultLine(result))
			}
		}
	}
	return nil
}

// followLeases records the leases several times a second until ctx is done.
func (d *demo) followLeases(ctx context.Context) error {
	for app.Sleep(ctx, frameInterval) {
		for _, repo := range d.board.repos {
			lock, err := d.lock(ctx, repo)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			d.board.mu.Lock()
			repo.lock = lock
			d.board.mu.Unlock()
		}
	}
	return nil
}

// lock returns the lease of a repository.
func (d *demo) lock(ctx context.Context, repo *sampleRepo) (locking.Status, error) {
	return d.locks.Status(ctx, repo.path.Key())
}

// wrongTokens counts the tokens sent for the hot repository that belong to none of its apps.
func (d *demo) wrongTokens() (n int) {
	for _, token := range d.git.TokensSeen(hotRepo) {
		if !slices.Contains(d.tokens, token) {
			n++
		}
	}
	return n
}

// behind counts the repositories that are not at the last pushed commit.
func (d *demo) behind() (n int) {
	for repo, head := range d.heads.last {
		_, commit, err := resolve(filepath.Join(d.root, repo))
		if err != nil || commit != head {
			n++
		}
	}
	return n
}
