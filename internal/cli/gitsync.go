package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/disk"
	"lockstep/internal/execute"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/term"
	"lockstep/internal/watch"
	"lockstep/tree"
)

// gitSync is what the flags of git-sync say, and what was synced.
type gitSync struct {
	repo, ref, root, link, submodules, username, password, passwordFile, knownHosts string
	command, webhook, method, bind                                                  string
	sshKeys                                                                         []string
	depth, maxFailures, status                                                      int
	oneTime, checkHosts, metrics                                                    bool
	period, syncTimeout, stale                                                      time.Duration
	commandTimeout, commandBackoff, webhookTimeout, webhookBackoff                  time.Duration

	cfg          config.Config
	log          *slog.Logger
	urls         string // that the credential is for
	hooks        []gitSyncHook
	name, commit string      // published name, and its commit; "" before the first sync
	ready        atomic.Bool // there is a commit
}

// gitSyncHook is a configured hook.
type gitSyncHook struct {
	name    string // in logs
	call    func(context.Context) error
	backoff time.Duration
	commit  string    // for which it has succeeded
	due     time.Time // after a failure
}

// newFlags returns those flags of git-sync 4.7 that are honoured, and some that need no effect.
func (s *gitSync) newFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("git-sync", pflag.ContinueOnError)
	for name, to := range map[string]*string{"repo": &s.repo, "ref": &s.ref, "root": &s.root, "link": &s.link,
		"submodules": &s.submodules, "username": &s.username, "password": &s.password, "password-file": &s.passwordFile,
		"ssh-known-hosts-file": &s.knownHosts, "exechook-command": &s.command, "webhook-url": &s.webhook,
		"webhook-method": &s.method, "http-bind": &s.bind, "git-gc": new(string)} {
		f.StringVar(to, name, *to, "as in git-sync")
	}
	for name, to := range map[string]*time.Duration{"period": &s.period, "sync-timeout": &s.syncTimeout,
		"stale-worktree-timeout": &s.stale, "exechook-timeout": &s.commandTimeout, "exechook-backoff": &s.commandBackoff,
		"webhook-timeout": &s.webhookTimeout, "webhook-backoff": &s.webhookBackoff} {
		f.DurationVar(to, name, *to, "as in git-sync")
	}
	for name, to := range map[string]*bool{"one-time": &s.oneTime, "ssh-known-hosts": &s.checkHosts,
		"http-metrics": &s.metrics, "add-user": new(bool)} {
		f.BoolVar(to, name, *to, "as in git-sync")
	}
	f.IntVar(&s.depth, "depth", s.depth, "as in git-sync")
	f.IntVar(&s.maxFailures, "max-failures", s.maxFailures, "as in git-sync")
	f.IntVar(&s.status, "webhook-success-status", s.status, "as in git-sync")
	f.IntP("verbose", "v", 0, "no effect; see LOCKSTEP_LOG_LEVEL")
	f.StringSliceVar(&s.sshKeys, "ssh-key-file", s.sshKeys, "as in git-sync, but only one")
	return f
}

func newGitSyncCommand(std term.Streams) *cobra.Command {
	s := gitSync{ref: "HEAD", submodules: "recursive", depth: 1, checkHosts: true, method: http.MethodPost, status: 200,
		sshKeys: []string{"/etc/git-secret/ssh"}, knownHosts: "/etc/git-secret/known_hosts", period: 10 * time.Second,
		syncTimeout: 2 * time.Minute, commandTimeout: 30 * time.Second, commandBackoff: 3 * time.Second,
		webhookTimeout: time.Second, webhookBackoff: 3 * time.Second}
	cmd := &cobra.Command{
		Use:   "git-sync",
		Short: "Sync one repository with git-sync's flags and variables",
		Long: "Sync one repository to a link, with the flags and GITSYNC_* variables of git-sync 4.7, a worker and a\n" +
			"Redis in this process, until SIGTERM. What cannot be honoured is refused; --add-user and --git-gc have no\n" +
			"effect. The link leads to a published name in --root/.git-sync, so mount the whole --root. Trees are\n" +
			"read-only; their commit is in .git/lockstep-commit, not in their name.",
		Example: "  lockstep git-sync --repo https://example.com/acme/widgets.git --root /git --link current --one-time",
		RunE: func(cmd *cobra.Command, _ []string) error {
			term.OutliveTerminal()
			watches, err := s.prepare(cmd, std)
			if err != nil {
				return term.UsageError(err)
			}
			log := app.NewLogger(std.Stderr, s.cfg, silent) // of the worker, whose results are logged
			process := app.Config{Config: s.cfg, Log: log, Metrics: telemetry.New(), Getenv: s.variable}
			return s.run(cmd.Context(), process, watches)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return term.UsageError(fmt.Errorf(notHonoured, err)) })
	cmd.Flags().AddFlagSet(s.newFlags())
	return cmd
}

const notHonoured = "%w; docs/migrating.md says what to use instead of what is not supported"

// prepare reads the variables, checks the flags, and returns watches of the ref as a branch and as a tag.
func (s *gitSync) prepare(cmd *cobra.Command, std term.Streams) (watches []watch.Watch, err error) {
	if err := config.SetFlags(cmd.LocalNonPersistentFlags(), "GITSYNC_", std.Environ); err != nil {
		return nil, fmt.Errorf(notHonoured, err)
	}
	if s.cfg, err = loadSettings(cmd, std); err != nil {
		return nil, err
	}
	modes := map[string]events.Submodules{"recursive": events.SubmodulesRequired, "off": events.SubmodulesOff}
	mode, known := modes[s.submodules]
	u, notURL := url.Parse(events.RemoteURL(s.repo))
	switch {
	case notURL != nil || s.repo == "" || s.root == "": // a password may be in it
		return nil, errors.New("--repo, a URL, and --root are required (GITSYNC_REPO, GITSYNC_ROOT)")
	case !s.checkHosts || len(s.sshKeys) != 1 || strings.Contains(s.sshKeys[0], ":"):
		return nil, errors.New("--ssh-known-hosts=false and several --ssh-key-file are not supported")
	case !known:
		return nil, fmt.Errorf("--submodules %s is not supported: want recursive or off", s.submodules)
	case s.period < 10*time.Millisecond:
		return nil, fmt.Errorf("--period %v: want at least 10ms", s.period)
	}
	w := watch.Watch{App: "git-sync", Poll: watch.Never, Depth: cmp.Or(events.Depth(s.depth), events.DepthFull)}
	if password, has := u.User.Password(); has && u.Scheme != "ssh" && s.username == "" {
		s.username, s.password, u.User = u.User.Username(), password, nil
	}
	w.URL, s.urls = u.String(), u.Scheme+"://"+events.HostPort(u)+"/"
	if s.username != "" {
		w.Credential = "git-sync"
	}
	if u.Scheme == "ssh" {
		w.Credential, s.cfg.KnownHosts = "git-sync", s.knownHosts
	}
	w.Options = watch.With(submodules.Options{Mode: mode, Credentials: strings.Fields(w.Credential)})
	for _, ref := range []string{s.ref, "refs/tags/" + s.ref} {
		if w.Ref, err = watch.ParseSelector(ref); err == nil {
			w, err = watch.New(w)
		}
		if err != nil {
			return nil, err
		}
		watches = append(watches, w)
	}
	if s.link = cmp.Or(s.link, filepath.Base(strings.Trim(s.repo, "/"))); !filepath.IsAbs(s.link) {
		s.link = filepath.Join(s.root, s.link)
	}
	s.cfg.Redis, s.cfg.Cell, s.cfg.Credentials, s.cfg.Root = "", "", "", filepath.Join(s.root, ".git-sync")
	s.cfg.Limits.FetchTimeout, s.cfg.MaxAttempts, s.cfg.Grace = s.syncTimeout, 1, 0
	s.cfg.TreeGrace, s.cfg.ResultsKeep = cmp.Or(s.stale, s.cfg.TreeGrace), time.Minute
	s.log = app.NewLogger(std.Stderr, s.cfg, slog.LevelInfo)
	return watches, s.addHooks(append(std.Environ, "GITSYNC_REPO="+w.URL))
}

func (s *gitSync) addHooks(environ []string) error {
	if s.command != "" {
		command, err := execute.New([]string{s.command}, s.commandTimeout, environ)
		if err != nil {
			return err
		}
		call := func(ctx context.Context) error { return s.runCommand(ctx, command) }
		s.hooks = append(s.hooks, gitSyncHook{name: s.command, call: call, backoff: s.commandBackoff})
	}
	if s.webhook != "" {
		to, err := url.Parse(s.webhook)
		if err != nil || to.Host == "" { // a secret may be in it
			return errors.New("--webhook-url: want a URL with a host")
		}
		call := func(ctx context.Context) error { return s.callWebhook(ctx, to) }
		s.hooks = append(s.hooks, gitSyncHook{name: "webhook at " + to.Host, call: call, backoff: s.webhookBackoff})
	}
	return nil
}

// variable returns what the variables of the credential would say.
func (s *gitSync) variable(name string) string {
	read := func(file string) string { text, _ := os.ReadFile(file); return string(text) } // without it, the sync fails
	password := cmp.Or(s.password, strings.TrimSpace(read(s.passwordFile)))
	return map[bool]map[string]string{
		true:  {"URLS": s.urls, "SSH_KEY": read(s.sshKeys[0])},
		false: {"URLS": s.urls, "USERNAME": s.username, "PASSWORD": password},
	}[strings.HasPrefix(s.urls, "ssh:")][strings.TrimPrefix(name, "LOCKSTEP_CREDENTIAL_GIT_SYNC_")]
}

// run syncs until ctx is done, or once. It fails like the last sync or, if that has succeeded, its hooks.
func (s *gitSync) run(ctx context.Context, process app.Config, watches []watch.Watch) (failed error) {
	if s.bind != "" {
		listener, err := net.Listen("tcp", s.bind)
		if err != nil {
			return fmt.Errorf("--http-bind: %w", err)
		}
		answer := func(w http.ResponseWriter, r *http.Request) {
			switch {
			case s.metrics && r.URL.Path == "/metrics":
				process.Metrics.Handler().ServeHTTP(w, r)
			case !s.ready.Load():
				http.Error(w, "there is no tree yet", http.StatusServiceUnavailable)
			}
		}
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(answer)}
		defer server.Close()
		go func() { _ = server.Serve(listener) }() // until Close
	}
	for failures := 1; ; failures++ { // with a new worker, which knows of no backoff
		err := besideWorker(ctx, process, func(ctx context.Context, client redis.UniversalClient) error {
			if _, err := watch.NewRegistry(client, s.cfg.Namespace()).Put(ctx, watches...); err != nil {
				return err
			}
			for ctx.Err() == nil {
				if err := s.sync(ctx, client, watches); err != nil {
					return err
				}
				failures = 1
				if s.oneTime {
					failed = s.callHooks(ctx)
					return nil
				}
				s.rest(ctx)
			}
			return ctx.Err()
		})
		switch {
		case ctx.Err() != nil && !s.oneTime:
			return nil
		case err == nil:
			return failed
		case ctx.Err() != nil, s.maxFailures >= 0 && failures >= s.maxFailures:
			return err
		}
		s.log.ErrorContext(ctx, "sync failed, will retry", "error", err, "next", s.period)
		s.rest(ctx)
	}
}

// rest calls the hooks that are due, until the next sync is.
func (s *gitSync) rest(ctx context.Context) {
	for sync := time.Now().Add(s.period); ; {
		_ = s.callHooks(ctx) // logged
		next := sync
		for _, h := range s.hooks {
			if h.commit != s.commit && h.due.Before(next) {
				next = h.due
			}
		}
		if !redisx.Pause(ctx, time.Until(next)) || !time.Now().Before(sync) {
			return
		}
	}
}

// sync syncs once, and updates the link.
func (s *gitSync) sync(ctx context.Context, client redis.UniversalClient, watches []watch.Watch) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.syncTimeout, errors.New("no end within --sync-timeout"))
	defer cancel()
	var result events.Result
	for i, w := range watches { // of a tag only if there is no such branch
		ref, _ := w.Ref.Ref()
		change, err := w.Change(uuid.NewString(), "/lockstep/git-sync", ref, "")
		if err == nil {
			result, err = request(ctx, client, s.cfg, change)
		}
		if err != nil {
			return errors.Join(err, context.Cause(ctx), s.trouble(ctx, client, change.Repo))
		}
		if result.Type == events.ResultSynced {
			slices.Reverse(watches[:i+1]) // a tag is asked for first from now on
		}
		if result.Class != events.ClassNoRef {
			break
		}
	}
	if result.Type != events.ResultSynced {
		return errors.New(cmp.Or(result.Error, "the remote has no such ref"))
	}
	if err := disk.Link(filepath.Join(s.cfg.Root, result.Path), s.link); err != nil {
		return fmt.Errorf("--link: %w", err)
	}
	if s.ready.Store(true); s.commit != result.After {
		s.log.InfoContext(ctx, "synced", "commit", result.After, "link", s.link)
		app.ReleaseMemory()
	}
	s.name, s.commit = result.Path, result.After
	return nil
}

// trouble returns the last error of the repository, for which a worker waits.
func (s *gitSync) trouble(ctx context.Context, client redis.UniversalClient, repo events.RepoPath) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	known, err := state.NewStore(client, s.cfg.Namespace()).LoadTroubles(ctx, repo)
	if failing, _ := known.Failing(); err == nil && len(failing) > 0 {
		return errors.New(failing[0].Error)
	}
	return nil
}

// callHooks calls the hooks that are due and have not succeeded for the commit.
func (s *gitSync) callHooks(ctx context.Context) (err error) {
	for i := range s.hooks {
		h := &s.hooks[i]
		if h.commit == s.commit || time.Now().Before(h.due) {
			continue
		}
		failed := h.call(ctx)
		if failed == nil {
			h.commit = s.commit
			continue
		}
		h.due = time.Now().Add(h.backoff)
		err = errors.Join(err, fmt.Errorf("%s: %w", h.name, failed))
		if !s.oneTime {
			s.log.ErrorContext(ctx, "hook failed, will retry", "hook", h.name, "error", failed, "next", h.backoff)
		}
	}
	return err
}

func (s *gitSync) runCommand(ctx context.Context, command execute.Command) error {
	t, err := tree.Open(s.cfg.Root, s.name)
	if err != nil {
		return err
	}
	defer t.Close()
	command.Environ = append(slices.Clip(command.Environ), "GITSYNC_HASH="+t.Commit())
	output, err := command.Run(ctx, t, s.name, nil)
	s.log.InfoContext(ctx, "exechook called", "commit", t.Commit(), "output", output)
	return err
}

func (s *gitSync) callWebhook(ctx context.Context, to *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, s.webhookTimeout)
	defer cancel()
	answer, err := postHook(ctx, s.cfg, s.method, to, http.Header{"Gitsync-Hash": {s.commit}}, nil)
	if err == nil && s.status > 0 && answer.Status != s.status {
		err = fmt.Errorf("answered %d, want %d", answer.Status, s.status)
	}
	return err
}
