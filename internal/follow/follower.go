package follow

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/git/wildmatch"
	"lockstep/internal/volume"
)

// ErrRevoked means that the reader has refused the token for longer than [Config.TokenWait].
var ErrRevoked = errors.New("the token was removed: the reader refuses it; create one with lockstep tokens create, " +
	"and put it into the token file")

// Volume shows what is published here. [volume.Volume] implements it.
type Volume interface {
	Repos() iter.Seq2[events.RepoPath, error]
	Published(repo events.RepoPath) (volume.Published, bool, error)
	Locate(repo events.RepoPath, ref events.Ref) (volume.Located, bool, error)
}

// Config configures a [Follower]. Reader, Volume, Record, Publish, Purge and Log are required.
type Config struct {
	Reader *Reader
	Volume Volume
	Record *Record

	// Publish publishes a change for the local worker.
	Publish func(ctx context.Context, change events.Change) error
	// Purge begins the purge of a copy, whose refs are then synced again.
	Purge func(ctx context.Context, repo events.RepoPath) error

	// globs of repositories, as in Git: * within a segment, ** across segments; empty selects all
	Select       []string
	Depth        events.Depth  // history to keep
	Credential   string        // name under which the worker finds the token
	SyncAll      bool          // sync published repositories again at the start, so that the local Redis has their state
	CompareEvery time.Duration // interval at which everything is compared; default an hour
	TokenWait    time.Duration // how long a refused token may be replaced; default two minutes

	Name    string // of the follower, for its reports; "" sends none
	Version string // of the program, for its reports

	Pending func() int // returns the number of refs that are published, but not processed here yet; default 0

	State func(why error) // called when Status.Err may have changed; optional
	Log   *slog.Logger
}

// Follower keeps a volume in step with a reader.
type Follower struct {
	cfg      Config
	incoming chan incoming
	settled  chan events.Result

	// Owned by the goroutine of apply.
	position position
	jobs     map[string]job    // changes without a result, by ID
	checks   map[string]*check // repositories to compare again, by key
	// when the reader stopped listing a repository, or its default branch, by key; see knownGone
	gone       map[string]time.Time
	missing    []events.RepoPath // published here and not listed, to be compared when the stream has caught up
	listed     uint64            // number of the frame of the first complete list; 0 before
	repos      map[string]Listed // as listed last, by key
	comparedAt time.Time         // last comparison of all repositories
	all        bool              // the next list compares all repositories
	listAt     time.Time         // when to list next; zero before the stream is open
	listTry    int               // failed lists in a row
	live       bool              // frames that arrive are newer than the list
	listing    bool              // a list is requested
	listAgain  bool              // the requested list may be older than the current stream
	// the stream began at a cursor that was not reached, and there has been no list since
	restart  bool
	compared map[string]bool   // repositories whose refs are requested, by key
	touched  map[string]uint64 // last frame about a repository while anything is requested, by key

	// ask sends a request to the reader in the background; apply then calls the returned function. A test may
	// call both at once.
	ask      func(ctx context.Context, request func() (note func()))
	asking   sync.WaitGroup
	answers  chan func()
	requests chan struct{} // limits requests for refs

	mu     sync.Mutex
	status Status
}

// Status describes a follower.
type Status struct {
	Connected bool
	Since     time.Time // of Connected
	CaughtUp  bool      // the repositories of the first list are published, or have failed
	Refused   bool      // the reader refuses the token
	Repos     int       // listed
	Behind    int       // refs that are not published yet, or for which Config.Pending counts
	Cursor    string    // everything up to here is published; "" if unknown
	Level     time.Time // last time at which nothing was behind, or the start
}

// Err returns nil while the follower is connected and caught up, and a short error otherwise. A lost
// connection is an error after the time that a stream may be silent.
func (s Status) Err() error {
	switch {
	case s.Refused:
		return ErrRefused
	case !s.Connected && (!s.CaughtUp || time.Since(s.Since) > maxSilence):
		return errors.New("not connected to the reader")
	case !s.CaughtUp:
		return errors.New("catching up")
	}
	return nil
}

// Lag is the time since everything that the reader has was published here, or 0 if it still is.
func (s Status) Lag() time.Duration {
	if s.Connected && s.Behind == 0 && s.CaughtUp {
		return 0
	}
	return time.Since(s.Level)
}

// incoming is a message from connect to apply.
type incoming struct {
	frame   *Frame // nil if only the state has changed
	opened  bool   // the frame is the first of a stream
	restart bool   // list, because earlier frames are unknown
	resume  bool   // the frame is at an earlier position
	err     error  // why the connection is lost
}

// New returns a follower.
func New(cfg Config) (*Follower, error) {
	if cfg.Reader == nil || cfg.Volume == nil || cfg.Record == nil || cfg.Publish == nil || cfg.Purge == nil ||
		cfg.Log == nil {
		return nil, errors.New("follow: Reader, Volume, Record, Publish, Purge and Log of Config are required")
	}
	for _, glob := range cfg.Select {
		if err := CheckGlob(glob); err != nil {
			return nil, err
		}
	}
	if cfg.CompareEvery == 0 {
		cfg.CompareEvery = time.Hour
	}
	if cfg.Pending == nil {
		cfg.Pending = func() int { return 0 }
	}
	if cfg.TokenWait == 0 {
		cfg.TokenWait = 2 * time.Minute
	}
	f := &Follower{
		cfg: cfg, compared: map[string]bool{}, touched: map[string]uint64{},
		answers: make(chan func()), requests: make(chan struct{}, listRequests), incoming: make(chan incoming),
		settled: make(chan events.Result), jobs: map[string]job{}, checks: map[string]*check{}, gone: map[string]time.Time{},
		position: position{open: map[string]span{}, cursor: cfg.Record.Cursor()},
		status:   Status{Since: time.Now(), Level: time.Now()},
	}
	f.ask = f.inBackground
	return f, nil
}

// CheckGlob returns an error unless a glob can select a repository.
func CheckGlob(glob string) error {
	for segment := range strings.SplitSeq(glob, "/") {
		if segment == "" || !wildmatch.IsValid(segment) {
			return fmt.Errorf("--repo %q: want a glob of repositories, such as acme/* or acme/**", glob)
		}
	}
	if !strings.Contains(glob, "/") && glob != "**" {
		return fmt.Errorf("--repo %q: selects nothing, since repositories are owner/name; want a glob such as %s/*",
			glob, glob)
	}
	return nil
}

// selects reports whether the globs select a repository.
func (f *Follower) selects(repo events.RepoPath) bool {
	var m wildmatch.Matcher
	for _, glob := range f.cfg.Select {
		if m.Match(strings.ToLower(glob), repo.Key()) {
			return true
		}
	}
	return len(f.cfg.Select) == 0
}

// Run follows the reader until ctx is done, and then returns nil. It returns [ErrRevoked] if the reader keeps
// refusing the token.
func (f *Follower) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.connect(ctx) })
	g.Go(func() error { return f.apply(ctx) })
	g.Go(func() error { f.report(ctx); return nil })
	return g.Wait()
}

// Status returns the current status.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) setStatus(set func(*Status)) {
	f.mu.Lock()
	was := f.status.Connected
	set(&f.status)
	if f.status.Connected != was {
		f.status.Since = time.Now()
	}
	err := f.status.Err()
	f.mu.Unlock()
	if f.cfg.State != nil {
		f.cfg.State(err)
	}
}

const (
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 30 * time.Second
)

// connect keeps a stream of results open, and passes its frames on.
func (f *Follower) connect(ctx context.Context) error {
	after, restart, backoff := f.cfg.Record.Cursor(), true, firstBackoff
	var refused string // token that has been refused since then; zero if the last attempt had another end
	var since time.Time
	for ctx.Err() == nil {
		token, _ := f.cfg.Reader.Token()
		last, opened, err := f.receive(ctx, after, restart)
		after = last
		if opened {
			restart, backoff = false, firstBackoff
		}
		if gone, ok := errors.AsType[*GoneError](err); ok {
			after, restart = gone.Cursor, true
		}
		if ctx.Err() != nil {
			break
		}
		f.send(ctx, incoming{err: err})
		if errors.Is(err, ErrRefused) {
			if token != refused || since.IsZero() {
				refused, since = token, time.Now()
				f.cfg.Log.ErrorContext(ctx, "the reader refuses the token, fetching nothing until it accepts it or the token file has another one",
					"wait", f.cfg.TokenWait)
			}
			left := f.cfg.TokenWait - time.Since(since)
			if left <= 0 {
				return ErrRevoked
			}
			sleep(ctx, min(left, askAgain))
			continue
		}
		since = time.Time{}
		pause := waitOf(err) + backoff/2 + rand.N(backoff/2)
		f.cfg.Log.WarnContext(ctx, "connection to the reader lost, will retry", "error", err,
			"next", pause.Round(time.Millisecond))
		sleep(ctx, pause)
		backoff = min(2*backoff, lastBackoff)
	}
	return nil
}

// receive opens a stream and passes on its frames until it ends. It returns the last cursor, and whether
// there was a frame.
func (f *Follower) receive(ctx context.Context, after string, restart bool) (last string, opened bool, err error) {
	s, err := f.cfg.Reader.Results(ctx, after)
	if err != nil {
		return after, false, err
	}
	defer s.Close()
	for resume := after != ""; ; {
		frame, err := s.Next()
		if err != nil {
			return after, opened, err
		}
		after = frame.Cursor
		f.send(ctx, incoming{frame: &frame, opened: !opened, restart: restart && !opened, resume: resume})
		opened = true
	}
}

func (f *Follower) send(ctx context.Context, in incoming) {
	select {
	case f.incoming <- in:
	case <-ctx.Done():
	}
}

// askAgain is how often a reader that refuses the token is asked again, with what the token file has then: its Redis
// may be restored.
const askAgain = 5 * time.Second

const reportEvery = 10 * time.Second

// report sends reports to the reader while it is connected.
func (f *Follower) report(ctx context.Context) {
	if f.cfg.Name == "" {
		return
	}
	for failed := false; ctx.Err() == nil; {
		now := f.Status()
		if !now.Connected {
			sleep(ctx, time.Second)
			continue
		}
		err := f.cfg.Reader.Report(ctx, f.cfg.Name, Report{
			Cursor: now.Cursor, Repos: now.Repos, Behind: now.Behind, Version: f.cfg.Version,
		})
		if err != nil && !failed && ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "the reader does not accept reports of this follower", "error", err)
		}
		failed = err != nil
		sleep(ctx, reportEvery)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
