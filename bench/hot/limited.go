package hot

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// limited is the case of a host that limits one credential.
type limited struct {
	workload
	repos, rate             int
	calm, retryAfter, limit time.Duration
}

func newLimitedCommand(std term.Streams) *cobra.Command {
	var c limited
	cmd := newCase(std, &cobra.Command{
		Use:   "limited",
		Short: "Changes on a good host beside many on a host that answers 429",
		Long: "Queue a change to each of many repositories on a host that answers 429 with Retry-After, all with one credential,\n" +
			"and count the requests that it gets until that time has passed. Then it answers, and all changes must be synced.\n" +
			"Meanwhile, and before, repositories on another host are synced at a fixed rate.",
	}, func() error {
		return atLeastOne("--repos, --rate, --calm, --retry-after, --limit, --processes and --slots", int64(c.repos), int64(c.rate),
			int64(c.calm/time.Second), int64(c.retryAfter/time.Second), int64(c.limit), int64(c.processes), int64(c.slots))
	}, c.run)
	flags := cmd.Flags()
	c.addFlags(flags, 3, 8)
	flags.IntVar(&c.repos, "repos", 10_000, "number of repositories on the host that answers 429")
	flags.IntVar(&c.rate, "rate", 10, "changes on the other host per second")
	flags.DurationVar(&c.calm, "calm", 20*time.Second, "how long to measure the other host before")
	flags.DurationVar(&c.retryAfter, "retry-after", time.Minute, "Retry-After of the answer 429, in whole seconds")
	flags.DurationVar(&c.limit, "limit", 15*time.Minute, "how long to wait until all are synced")
	return cmd
}

const credentialName = "forge"

func (c *limited) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	content, err := env.NewRemote(ctx, 0)
	if err != nil {
		return nil, err
	}
	good, err := env.ServeHost(1, content)
	if err != nil {
		return nil, err
	}
	gate := &limiting{retryAfter: c.retryAfter, next: content}
	forge, err := env.ServeHost(2, gate)
	if err != nil {
		return nil, err
	}
	credentials, err := writeCredential(env, forge.Base)
	if err != nil {
		return nil, err
	}
	changes, err := newLedger(server, events.DefaultNamespace)
	if err != nil {
		return nil, err
	}
	if _, err := c.startServices(ctx, env, server, "--credentials", credentials); err != nil {
		return nil, err
	}
	if err := changes.warmUp(ctx, good.URLs("first", 1)[0]); err != nil {
		return nil, err
	}
	calm, err := syncCold(ctx, env, changes, good, "calm", c.rate*int(c.calm/time.Second), c.rate, rig.RoundGrace)
	if err != nil {
		return nil, err
	}

	began, urls := time.Now(), forge.URLs("limited", c.repos)
	env.Progress("queueing %d changes on the host that answers 429", c.repos)
	ids, err := changes.publishEvery(ctx, 0, c.repos, func(i int) (events.Change, error) {
		return events.Change{URL: urls[i], Credential: credentialName}, nil
	})
	if err != nil {
		return nil, err
	}
	const margin = 2 * time.Second // for the last of the others
	left := max(1, int((c.retryAfter-time.Since(began)-margin)/time.Second))
	loaded, err := syncCold(ctx, env, changes, good, "cold", c.rate*left, c.rate, margin/2)
	if err != nil {
		return nil, err
	}
	if wait := time.Until(began.Add(c.retryAfter)); wait > 0 && !app.Sleep(ctx, wait) {
		return nil, context.Cause(ctx)
	}
	requests := forge.Requests.Load()
	gate.lifted.Store(true)
	env.Progress("the host answers")
	lifted := time.Now()
	synced, err := changes.latency(ctx, ids, c.limit)
	if err != nil {
		return nil, err
	}
	report := newCaseReport("limited", "%d repositories on a host that answers 429 with Retry-After %v, %d/s on another, %d processes × %d slots", c.repos, c.retryAfter, c.rate, c.processes, c.slots)
	report.compare(calm, loaded)
	report.addWithin(1.2, "p99 ratio", report.RatioP99)
	report.addWithin(20, "requests until Retry-After has passed", float64(requests))
	return report, report.addFates(ctx, changes, ids, synced, time.Since(lifted))
}

// addFates adds the outcomes of the limited changes.
func (r *caseReport) addFates(ctx context.Context, changes *ledger, ids []string, synced Latency, took time.Duration) error {
	dead, err := changes.client.XLen(ctx, changes.namespace.Dead()).Result()
	if err != nil {
		return err
	}
	r.addWithin(0, "limited changes not synced", float64(synced.Pending+synced.Failed))
	r.addWithin(0, "attempts charged", float64(changes.attempts(ids)))
	r.addWithin(0, "dead letters", float64(dead))
	r.add("all done after the host answers, s", took.Seconds())
	return nil
}

// writeCredential writes a credential for URLs with this prefix, and returns the folder of credentials.
func writeCredential(env *rig.Env, prefix string) (string, error) {
	folder := filepath.Join(env.Dir, "credentials")
	if err := os.MkdirAll(filepath.Join(folder, credentialName), 0o700); err != nil {
		return "", err
	}
	for name, content := range map[string]string{"username": "bench", "password": "secret", "urls": prefix} {
		if err := os.WriteFile(filepath.Join(folder, credentialName, name), []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return folder, nil
}

// limiting answers 429 until the limit is lifted.
type limiting struct {
	retryAfter time.Duration
	lifted     atomic.Bool
	next       http.Handler
}

func (l *limiting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.lifted.Load() {
		l.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(l.retryAfter.Seconds())))
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}
