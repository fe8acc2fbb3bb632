package main

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
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/locking"
)

// demoBoard is what is known of a demonstration so far. Who publishes writes to it before, who follows the
// results after; so it tells a result that is missing, or that comes twice.
type demoBoard struct {
	repos []*demoRepo // the hot one first
	named map[string]*demoRepo

	mu       sync.Mutex
	began    time.Time
	waiting  map[string]demoChange // changes without a result, by id
	issued   int                   // changes
	results  int
	doubled  int
	failed   int
	reads    int
	torn     int
	killed   time.Time       // when the last worker was
	takeover []time.Duration // from a kill until another worker had the lease
	delayed  []time.Duration // what waited for a killed worker
}

// demoRepo is one sample repository; demoBoard.mu guards it, but for its name.
type demoRepo struct {
	name string
	path events.RepoPath

	commits   map[string]int // the number of the push that brought it
	numbers   int            // of pushes begun
	pushes    int            // made
	published int            // the push whose tree was published last
	changes   int
	waiting   int
	last      time.Duration
	latencies []time.Duration // from a push to its result
	lock      locking.Status
	stalled   bool            // its lease is a dead worker's
	before    gitserver.Stats // what it had been asked before the first push
}

// demoChange is a change without a result.
type demoChange struct {
	repo    *demoRepo
	at      time.Time
	delayed bool
}

func newDemoBoard(names []string) *demoBoard {
	b := &demoBoard{began: time.Now(), waiting: map[string]demoChange{}, named: map[string]*demoRepo{}}
	for _, name := range names {
		path, _ := events.ParseRepoPath(name)
		repo := &demoRepo{name: name, path: path, commits: map[string]int{}}
		b.repos, b.named[name] = append(b.repos, repo), repo
	}
	return b
}

func (b *demoBoard) hot() *demoRepo { return b.repos[0] }

func (b *demoBoard) created(repo, commit string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[repo].commits[commit] = 0
}

// open begins to count what the remotes are asked.
func (b *demoBoard) open(asked func(repo string) gitserver.Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, repo := range b.repos {
		repo.before = asked(repo.name)
	}
}

// next is the number of a push to be made.
func (b *demoBoard) next(repo string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[repo].numbers++
	return b.named[repo].numbers
}

// numberOf is the number of the push that brought a commit.
func (b *demoBoard) numberOf(repo, commit string) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	number, ok := b.named[repo].commits[commit]
	return number, ok
}

// pushed notes a push, and returns the ids of the changes to publish of it.
func (b *demoBoard) pushed(name string, number int, commit string, changes int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	repo := b.named[name]
	repo.commits[commit] = number
	repo.pushes++
	ids := make([]string, changes)
	for i := range ids {
		b.issued++
		ids[i] = demoID + strconv.Itoa(b.issued)
		b.waiting[ids[i]] = demoChange{repo, time.Now(), repo.stalled}
		repo.changes++
		repo.waiting++
	}
	return ids
}

const demoID = "demo-" // and a number: the changes that we publish

// settled notes a result that was settled at that moment.
func (b *demoBoard) settled(result events.Result, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range result.Deliveries {
		change, ok := b.waiting[id]
		switch {
		case ok:
		case strings.HasPrefix(id, demoID):
			b.doubled++
			continue
		default:
			continue // the registry's, which has new watches looked after
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

// stall notes that a worker was killed, and whose leases it had. What waits now may be in its hands; what is to come of
// those repositories waits for their leases, until there is a result of another worker.
func (b *demoBoard) stall(at time.Time, held []*demoRepo) {
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

// resume notes that another worker has taken over, and returns how many changes of the hot repository wait for it.
func (b *demoBoard) resume(after time.Duration) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.takeover = append(b.takeover, after)
	return b.hot().waiting
}

// readOne notes that a tree was read, and reports whether it is one of the first that were not whole.
func (b *demoBoard) readOne(err error) (tell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	if err != nil {
		b.torn++
	}
	return err != nil && b.torn <= 10
}

func (b *demoBoard) unsettled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

func (b *demoBoard) pushes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pushesLocked()
}

func (b *demoBoard) pushesLocked() (n int) {
	for _, repo := range b.repos {
		n += repo.pushes
	}
	return n
}

// hotShare is the hot repository's share of the pushes, in percent.
func (b *demoBoard) hotShare() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return 100 * float64(b.hot().pushes) / float64(max(1, b.pushesLocked()))
}

// asked is what the Git server was asked of a repository.
func (d *demo) asked(repo string) gitserver.Stats { return d.git.Stats(repo) }

// follow notes each result as it comes, until ctx is done.
func (d *demo) follow(ctx context.Context) error {
	client := d.redis.Open() // of its own: it waits most of the time
	defer client.Close()
	for from := "0"; ctx.Err() == nil; {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 100, Block: 100 * time.Millisecond}).Result()
		if errors.Is(err, redis.Nil) || redisx.Unavailable(err) || ctx.Err() != nil {
			continue // it is in this process: what is late comes
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
			ms, _, _ := strings.Cut(entry.ID, "-")
			settled, _ := strconv.ParseInt(ms, 10, 64)
			d.board.settled(result, time.UnixMilli(settled))
			if result.Type == events.ResultFailed {
				d.view.event("FAILED: %s", resultLine(result))
			}
		}
	}
	return nil
}

// lookAtLeases notes who holds the leases, some times a second, until ctx is done.
func (d *demo) lookAtLeases(ctx context.Context) error {
	for pause(ctx, demoFrame) {
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

// lock is who has the lease of a repository, and who waits for it.
func (d *demo) lock(ctx context.Context, repo *demoRepo) (locking.Status, error) {
	return d.locks.Status(ctx, repo.path.Key())
}

// wrongTokens is how many requests for the hot repository had none of its apps' tokens.
func (d *demo) wrongTokens() (n int) {
	for _, token := range d.git.TokensSeen(demoHot) {
		if !slices.Contains(d.tokens, token) {
			n++
		}
	}
	return n
}

// behind is how many repositories are not at the commit that was pushed last.
func (d *demo) behind() (n int) {
	for repo, head := range d.heads.last {
		_, commit, err := resolve(filepath.Join(d.root, repo))
		if err != nil || commit != head {
			n++
		}
	}
	return n
}
