package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/gittest"
	"lockstep/internal/redisx"
)

const (
	demoRepos  = 8
	demoFiles  = 40
	demoPushes = 10 // to each repository before the kill and after it, and three times as many to the hot one
	demoHot    = "demo/hot"
)

func newDemoCommand(std streams) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole of it, on sample repositories",
		Long: "Start a Git server with sample repositories, an embedded Redis and two worker processes; push to all\n" +
			"repositories, to one of them most of the time; kill a worker on the way; and read every published tree\n" +
			"all the while. It ends with a table. Needs git, and nothing else: no Redis, no network.",
		Example: "  lockstep demo",
		Args:    wrongUse(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := os.MkdirTemp("", "lockstep-demo-")
			if err != nil {
				return err
			}
			if dir, err = filepath.Abs(dir); err != nil { // a TMPDIR may be relative, and the workers are elsewhere
				return err
			}
			if keep {
				fmt.Fprintf(std.stdout, "keeping everything in %s\n", dir)
			} else {
				defer os.RemoveAll(dir)
			}
			ctx, fail := context.WithCancelCause(cmd.Context())
			defer fail(nil)
			if err := runDemo(ctx, fail, dir, std); err != nil {
				return cmp.Or(context.Cause(ctx), err) // what ended it, not what was broken off by that
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the sample repositories and the volume")
	return cmd
}

// demo is one run of the demonstration.
type demo struct {
	dir    string
	root   string
	fail   context.CancelCauseFunc
	git    *gittest.Server
	redis  redisx.Server
	client redis.UniversalClient
	repos  []string
	heads  map[string]string // last pushed commit of each repository

	pushes, reads, torn atomic.Int64
}

// runDemo runs until it is through or ctx is done; it calls fail when a worker ends by itself.
func runDemo(ctx context.Context, fail context.CancelCauseFunc, dir string, std streams) error {
	git, err := gittest.Start(filepath.Join(dir, "remote"))
	if err != nil {
		return fmt.Errorf("start the sample Git server: %w", err)
	}
	defer git.Close()
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return err
	}
	defer embedded.Close()
	d := &demo{dir: dir, root: filepath.Join(dir, "volume"), fail: fail, git: git, redis: embedded.Server, client: embedded.Open(), heads: map[string]string{}}
	defer d.client.Close()
	d.repos = append(d.repos, demoHot)
	for i := 1; i < demoRepos; i++ {
		d.repos = append(d.repos, fmt.Sprintf("demo/sample-%d", i))
	}

	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(std.stdout, "%6.2fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	first, err := d.spawn(ctx, std, "w1")
	if err != nil {
		return err
	}
	defer first.kill()
	second, err := d.spawn(ctx, std, "w2")
	if err != nil {
		return err
	}
	defer second.kill()
	say("two workers (pid %d, %d) on one volume and one Redis", first.pid(), second.pid())

	if err := d.push(ctx, "first", 1); err != nil {
		return err
	}
	if err := d.settled(ctx); err != nil {
		return err
	}
	say("%d repositories cloned", len(d.repos))

	reading, stopReading := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stopReading()
	reader.Go(func() { d.read(reading) })
	if err := d.push(ctx, "more", demoPushes); err != nil {
		return err
	}
	first.kill()
	say("%d pushes later: worker w1 (pid %d) killed in the middle of it, kill -9", d.pushes.Load()-int64(len(d.repos)), first.pid())
	if err := d.push(ctx, "yet more", demoPushes); err != nil {
		return err
	}
	say("all %d pushes made, three in ten to %s", d.pushes.Load(), demoHot)
	if err := d.settled(ctx); err != nil {
		return err
	}
	say("every change settled, what w1 had begun by w2")
	stopReading()
	reader.Wait()
	return d.sum(ctx, std.stdout, time.Since(began))
}

// child is a worker process.
type child struct {
	cmd    *exec.Cmd
	killed atomic.Bool
	done   chan struct{}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the process, if it has not ended, and returns when it has.
func (c *child) kill() {
	c.killed.Store(true)
	_ = c.cmd.Process.Kill()
	<-c.done
}

// spawn starts a worker in a process of its own. Its lease is short, so that the demonstration of a
// crash is too. What the user has set for a service of their own is not for this one.
func (d *demo) spawn(ctx context.Context, std streams, name string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "serve", "--redis", d.redis.String(), "--root", d.root,
		"--worker", name, "--lease", "2s", "--log-level", "error")
	cmd.Dir = d.dir // where no lockstep.yaml is
	cmd.Env = slices.DeleteFunc(slices.Clone(std.environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	cmd.Stdout, cmd.Stderr = std.stderr, std.stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if err := cmd.Wait(); !c.killed.Load() {
			d.fail(fmt.Errorf("demo: worker %s ended by itself: %w", name, cmp.Or(err, errors.New("exit status 0"))))
		}
	}()
	return c, nil
}

// push commits n times to each repository, more to the hot one, and publishes each commit's change.
func (d *demo) push(ctx context.Context, what string, n int) error {
	for i := range n {
		for _, repo := range d.repos {
			times := 1
			if repo == demoHot && n > 1 {
				times = 3
			}
			for j := range times {
				if err := d.pushOne(ctx, repo, fmt.Sprintf("%s %d.%d", what, i, j)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pushOne makes a commit whose files all say the same, so that a reader can tell a mix of two.
func (d *demo) pushOne(ctx context.Context, repo, version string) error {
	files := map[string]string{}
	for f := range demoFiles {
		files[fmt.Sprintf("dir-%d/file-%d", f%5, f)] = version
	}
	var commit string
	var err error
	if d.heads[repo] == "" {
		commit, err = d.git.Create(ctx, repo, files)
	} else {
		commit, err = d.git.Commit(ctx, repo, gittest.Main, gittest.Edit{Write: files})
	}
	if err != nil {
		return err
	}
	d.heads[repo] = commit
	d.pushes.Add(1)
	change, err := events.NewChange(events.Change{ID: uuid.NewString(), Source: "/lockstep/demo", URL: d.git.URL(repo), After: commit})
	if err != nil {
		return err
	}
	return publish(ctx, d.client, d.config(), change)
}

func (d *demo) config() config.Config {
	return config.Config{Redis: d.redis.String(), Prefix: string(events.DefaultNamespace)}
}

// settled waits until every change has its result.
func (d *demo) settled(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		results, err := d.client.XLen(ctx, events.DefaultNamespace.Results()).Result()
		if err != nil {
			return err
		}
		if results >= d.pushes.Load() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// read checks published trees, one after the other, until ctx is done: each must be whole, and all
// its files must be of one version.
func (d *demo) read(ctx context.Context) {
	for ctx.Err() == nil {
		for _, repo := range d.repos {
			tree, err := filepath.EvalSymlinks(filepath.Join(d.root, repo))
			d.reads.Add(1)
			if err != nil || !whole(tree) {
				d.torn.Add(1)
			}
		}
	}
}

func whole(tree string) bool {
	version := ""
	for f := range demoFiles {
		text, err := os.ReadFile(filepath.Join(tree, fmt.Sprintf("dir-%d/file-%d", f%5, f)))
		if err != nil || version != "" && string(text) != version {
			return false
		}
		version = string(text)
	}
	return true
}

// sum prints the table and fails if anything is not as promised.
func (d *demo) sum(ctx context.Context, w io.Writer, took time.Duration) error {
	service, err := readService(ctx, d.client, d.config())
	if err != nil {
		return err
	}
	behind := 0
	for _, repo := range d.repos {
		tree, err := filepath.EvalSymlinks(filepath.Join(d.root, repo))
		if err != nil || !strings.HasSuffix(tree, "-"+d.heads[repo][:12]) { // a tree's name ends in its commit
			behind++
		}
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		what  string
		value any
	}{
		{"repositories", len(d.repos)},
		{"pushes", d.pushes.Load()},
		{"results", service.Results},
		{"pending", service.Pending},
		{"dead", service.Dead},
		{"repositories behind their remote", behind},
		{"trees read", d.reads.Load()},
		{"torn or missing trees", d.torn.Load()},
		{"seconds", fmt.Sprintf("%.1f", took.Seconds())},
	} {
		fmt.Fprintf(tw, "%s\t%v\t\n", row.what, row.value)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if d.torn.Load() > 0 || behind > 0 || service.Dead > 0 || service.Pending > 0 || service.Results != d.pushes.Load() {
		return errors.New("demo: something is not as promised; see the table")
	}
	return nil
}
