package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// followers are many followers of one origin, behind a proxy that counts the bytes of packs.
type followers struct {
	*origin
	nodes   []*node
	repos   []string
	packs   atomic.Int64 // bytes sent to followers by fetches
	reads   atomic.Int64
	failed  atomic.Int64 // reads that were not complete
	workers int          // killed
}

// TestManyFollowers has followers of many repositories follow pushes, first undisturbed, then while followers, readers and workers are
// killed. The forge is asked once per push, the bytes of packs are those of thin packs, readers see only complete trees, no push is missed,
// and all trees are equal at the end. Latencies are logged: they need a quiet machine. LOCKSTEP_SOAK=1, without the race detector, runs
// 20 followers, 50 repositories, 500 pushes and 250 more under kills.
func TestManyFollowers(t *testing.T) {
	testenv.Long(t)
	count, repositories, pushes, killEvery := 3, 4, 12, 2
	if testenv.Soaking() && !testenv.UnderRace() {
		count, repositories, pushes, killEvery = 20, 50, 500, 5
	}
	f := &followers{}
	for n := range repositories {
		f.repos = append(f.repos, fmt.Sprintf("acme/r%d", n))
	}
	f.origin = startOrigin(t, f.repos...)
	f.url = f.count()
	for n := range count {
		f.nodes = append(f.nodes, f.follow("--name", fmt.Sprint("node-", n), "--tree-grace", "10s"))
	}
	for _, one := range f.nodes {
		one.process.AwaitLog("caught up with the reader")
	}
	t.Logf("first copies: %d bytes of packs for %d followers", f.packs.Swap(0), count)

	reading, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for range 2 {
		readers.Go(func() { f.read(reading) })
	}
	asked := f.asked()
	ordered := f.pushAll(pushes)
	f.awaitAll()
	f.logWaits(ordered)
	f.checkAsked(asked, pushes)
	f.checkPacks(ordered)

	asked = f.asked()
	kills := f.pushUnderKills(pushes/2, killEvery)
	f.awaitAll()
	f.checkAsked(asked, pushes/2+f.workers) // a worker that is killed between fetch and settling asks again
	for _, one := range f.nodes {
		for _, repo := range f.repos {
			one.assertSame(repo)
		}
	}
	stop()
	readers.Wait()
	t.Logf("%d processes killed, of them %d workers; %d reads, %d of them not complete", kills, f.workers, f.reads.Load(), f.failed.Load())
	if f.reads.Load() == 0 || f.failed.Load() > 0 {
		t.Errorf("%d of %d reads are not complete", f.failed.Load(), f.reads.Load())
	}
	f.checkDisk()
}

// logWaits checks that each push, or a later one of its repository, has reached all followers, and logs how long that took.
func (f *followers) logWaits(ordered []pushed) {
	f.Helper()
	waits := f.waits(ordered)
	f.Logf("publish to tree on the last of %d followers, %d pushes: p50 %v, p99 %v, longest %v", len(f.nodes), len(ordered),
		quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1))
}

// checkAsked checks that the forge was asked no more than once per push since, and once more for each lease that a busy machine has not
// renewed in time.
func (f *followers) checkAsked(since requests, pushes int) {
	f.Helper()
	now := f.asked()
	pushes += strings.Count(f.worker.Log.String(), "lease lost")
	lists, packs := now.lists-since.lists, now.packs-since.packs
	f.Logf("the forge was asked for %d lists of refs and %d packs", lists, packs)
	if lists > pushes || packs > pushes {
		f.Errorf("the forge was asked for %d lists of refs and %d packs, want at most %d of each", lists, packs, pushes)
	}
}

// maxPackRatio is how many bytes of packs a follower may get, by those of the thin packs that git makes.
const maxPackRatio = 1.2

func (f *followers) checkPacks(ordered []pushed) {
	f.Helper()
	sent, thin := f.packs.Load(), f.thin(ordered)*int64(len(f.nodes))
	ratio := float64(sent) / float64(thin)
	f.Logf("packs: %d bytes in all, git pack-objects --thin × followers: %d, ratio %.2f", sent, thin, ratio)
	if ratio > maxPackRatio {
		f.Errorf("followers got %.2f times the bytes of thin packs, want at most %.1f", ratio, maxPackRatio)
	}
}

// maxRootBytes limits what a repository may occupy in the root of a follower.
const maxRootBytes = 2 << 20

func (f *followers) checkDisk() {
	f.Helper()
	var total int64
	for _, one := range f.nodes {
		total += proctest.Must(diskUsage(one.root))(f.T)
	}
	f.Logf("the roots of the followers occupy %d bytes", total)
	if most := maxRootBytes * int64(len(f.nodes)*len(f.repos)); total > most {
		f.Errorf("the roots of the followers occupy %d bytes, want at most %d", total, most)
	}
}

// diskUsage returns the bytes that a folder occupies while it is in use.
func diskUsage(dir string) (bytes int64, err error) {
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && !seen[stat.Ino] {
			seen[stat.Ino] = true
			bytes += stat.Blocks * 512
		}
		return nil
	})
	return bytes, err
}

// count serves the reader through a proxy that counts the bytes of packs.
func (f *followers) count() string {
	target := proctest.Must(url.Parse(f.url))(f.T)
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Header.Get("X-Counted") == "" {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			f.packs.Add(packBytes(body))
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if bytes.Contains(body, []byte("command=fetch")) {
				r.Header.Set("X-Counted", "1")
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	f.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// packBytes returns the bytes of the pack in a response of protocol 2, without its framing.
func packBytes(body []byte) (n int64) {
	for len(body) >= 4 {
		length, err := strconv.ParseInt(string(body[:4]), 16, 32)
		if err != nil || int(length) > len(body) {
			return n
		}
		if length > 5 && body[4] == 1 { // the band of the pack
			n += length - 5
		}
		body = body[max(length, 4):]
	}
	return n
}

// requests counts requests to the forge.
type requests struct{ lists, packs int }

// asked returns how often the forge was asked.
func (f *followers) asked() (n requests) {
	for _, repo := range f.repos {
		stats := f.git.Stats(repo)
		n.lists, n.packs = n.lists+stats.InfoRefs, n.packs+stats.UploadPacks
	}
	return n
}

// pushed is a push, with the time at which the origin published it.
type pushed struct {
	repo, before, commit string
	number               int // of the push among those of the repository
	published            time.Time
}

// pushAll pushes to all repositories in turn, without waiting for followers.
func (f *followers) pushAll(n int) (ordered []pushed) {
	f.Helper()
	numbers := map[string]int{}
	for i := range n {
		repo := f.repos[i%len(f.repos)]
		before := f.git.Head(repo, "refs/heads/main")
		commit := f.push(repo, content(i))
		numbers[repo]++
		ordered = append(ordered, pushed{repo: repo, before: before, commit: commit, number: numbers[repo]})
	}
	at := map[string]time.Time{}
	for _, entry := range proctest.Must(f.client.XRange(f.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(f.T) {
		result := proctest.DecodeResult(f.T, entry)
		ms, _, _ := strings.Cut(entry.ID, "-")
		if _, ok := at[result.After]; !ok && result.Type == events.ResultSynced {
			at[result.After] = time.UnixMilli(proctest.Must(strconv.ParseInt(ms, 10, 64))(f.T))
		}
	}
	for i := range ordered {
		ordered[i].published = at[ordered[i].commit]
	}
	return ordered
}

// content returns the content of a file at the n-th push.
func content(n int) string { return strings.Repeat(fmt.Sprintln("push", n, rand.Uint64()), 1+n%40) }

// pushUnderKills pushes to all repositories in turn. During one push in killEvery a process is killed.
func (f *followers) pushUnderKills(n, killEvery int) (kills int) {
	f.Helper()
	for i := range n {
		f.pushDuring(f.repos[i%len(f.repos)], content(i), func() {
			if i%killEvery == killEvery-1 {
				f.kill(kills)
				kills++
			}
		})
	}
	return kills
}

func (f *followers) awaitAll() {
	f.Helper()
	for _, one := range f.nodes {
		for _, repo := range f.repos {
			one.await(repo, f.git.Head(repo, "refs/heads/main"))
		}
	}
}

var settledLine = regexp.MustCompile(`time=(\S+) .*msg="change settled".* repo=(\S+) .*outcome=synced after=([0-9a-f]+)`)

// waits returns for each push the time until the last follower had settled a tree that has it, by the followers' logs: a little later
// than it was published there.
func (f *followers) waits(ordered []pushed) (waits []time.Duration) {
	numbers := map[string]int{}
	for _, p := range ordered {
		numbers[p.commit] = p.number
	}
	longest := make([]time.Duration, len(ordered))
	for _, one := range f.nodes {
		type settled struct {
			number int
			at     time.Time
		}
		all := map[string][]settled{}
		proctest.Eventually(f.T, func() bool { // the log of the last push follows its tree
			clear(all)
			for _, found := range settledLine.FindAllStringSubmatch(one.process.Log.String(), -1) {
				if number := numbers[found[3]]; number > 0 {
					at, err := time.Parse(time.RFC3339Nano, found[1])
					if err == nil {
						all[found[2]] = append(all[found[2]], settled{number, at})
					}
				}
			}
			return !slices.ContainsFunc(ordered, func(p pushed) bool {
				return !slices.ContainsFunc(all[p.repo], func(s settled) bool { return s.number >= p.number })
			})
		}, "the log has all pushes")
		for i, p := range ordered {
			for _, s := range all[p.repo] {
				if s.number >= p.number {
					longest[i] = max(longest[i], s.at.Sub(p.published))
					break
				}
			}
		}
	}
	return longest
}

func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// thin returns the bytes of the thin packs that git makes of the pushes.
func (f *followers) thin(ordered []pushed) (bytes int64) {
	for _, p := range ordered {
		pack := proctest.Must(gitserver.Git(f.Context(), f.git.Dir(p.repo), p.commit+"\n^"+p.before+"\n", "pack-objects", "--thin", "--stdout", "--revs", "-q"))(f.T)
		bytes += int64(len(pack))
	}
	return bytes
}

// kill kills a process and starts it again.
func (f *followers) kill(n int) {
	switch n % 3 {
	case 0:
		f.workers++
		f.worker.Kill()
		f.startWorker()
	case 1:
		f.reader.Kill()
		f.startReader()
	default:
		one := f.nodes[n/3%len(f.nodes)]
		one.process.Kill()
		one.start()
	}
}

// read reads pinned trees of followers until ctx is done: each has all files of one commit.
func (f *followers) read(ctx context.Context) {
	for ctx.Err() == nil {
		one, repo := f.nodes[rand.N(len(f.nodes))], f.repos[rand.N(len(f.repos))]
		f.reads.Add(1)
		if err := f.readOnce(one, repo); err != nil {
			f.failed.Add(1)
			f.Errorf("%s of a follower cannot be read: %v", repo, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// readOnce reads all files of a tree, which must have the content of its commit.
func (f *followers) readOnce(one *node, repo string) error {
	opened, err := tree.Open(one.root, repo)
	if err != nil {
		return err
	}
	defer opened.Close()
	readme, err := fs.ReadFile(opened.FS(), "README")
	if err != nil {
		return fmt.Errorf("at %s: %w", opened.Commit(), err)
	}
	a, err := fs.ReadFile(opened.FS(), "a")
	if err != nil {
		return fmt.Errorf("at %s: %w", opened.Commit(), err)
	}
	if want, ok := f.contents.Load(opened.Commit()); !ok || string(a) != want || string(readme) != repo {
		return fmt.Errorf("at %s: README is %q, a is %q, want %q", opened.Commit(), readme, a, want)
	}
	return nil
}
