package volume

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// speculation is a fetch of the announced commit beside the list of refs. The pack stays in quarantine, unread, until the refs
// name the commit. The sync continues in any case. All methods accept nil.
type speculation struct {
	received
	into   store
	remote *wire.Session
	run    func()
	cancel context.CancelFunc
	bytes  atomic.Int64

	ended chan struct{} // closed when it has ended; nil before it starts
	err   error         // set before ended is closed
}

// speculate prepares to fetch the announced commit. It returns nil unless a push to a branch is announced that a store lacks, and
// the remote is known to serve such requests.
func (s *syncer) speculate(ctx context.Context) *speculation {
	commit, ref := object.ParseID(s.req.Announced), s.req.Ref.String()
	if commit.IsZero() || s.req.pinned() != "" || ref != "" && !strings.HasPrefix(ref, "refs/heads/") {
		return nil
	}
	into, err := s.f.currentStore(s.binding.MovedAway)
	if err != nil || into.needsRefetch() {
		return nil
	}
	refs, err := into.refs()
	haves := distinct(refs, ref, s.binding.Default.String())
	if err != nil || len(haves) == 0 || into.hasOtherFormat(commit) || slices.Contains(haves, commit) {
		return nil
	}
	var gate wire.TryGate
	if s.req.Gate != nil {
		var ok bool
		if gate, ok = s.req.Gate.(wire.TryGate); !ok {
			return nil
		}
	}
	if s.checkSpace(ctx) != nil {
		return nil
	}
	a := &speculation{received: received{want: s.wanted(commit, into, haves)}, into: into}
	limits := s.v.cfg.wireLimits(nil)
	if gate != nil {
		limits.Gate = optionalGate{gate, ctx}
	}
	if a.remote, err = s.v.net.Dial(s.req.from(), s.req.Auth, s.req.Foreign, limits); err != nil {
		return nil
	}
	if !a.remote.StartSpeculation(commit) {
		a.remote.Close()
		return nil
	}
	if a.q, err = object.OpenQuarantine(s.f.quarantine(s.req.Fence)); err != nil {
		a.remote.Close()
		return nil
	}
	a.q.Format = commit.Format()
	ctx, a.cancel = context.WithCancel(ctx)
	a.run = func() { a.shallow, a.err = a.fetch(ctx) }
	return a
}

// gate returns the gate of the list of refs, with which the speculation starts once the list is admitted.
func (a *speculation) gate(of wire.Gate) wire.Gate {
	switch {
	case a == nil:
		return of
	case of == nil:
		a.start()
		return nil
	}
	return startingGate{of, a}
}

func (a *speculation) start() {
	if a.ended == nil {
		a.ended = make(chan struct{})
		go func() {
			defer close(a.ended)
			a.run()
		}()
	}
}

func (a *speculation) fetch(ctx context.Context) (shallow []object.ID, err error) {
	file, err := a.q.CreatePack()
	if err != nil {
		return nil, err
	}
	shallow, err = a.remote.FetchUnlisted(ctx, a.want, io.MultiWriter(file, &byteCounter{&a.bytes}))
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return shallow, err
}

// drop cancels the fetch and removes its quarantine.
func (a *speculation) drop() {
	if a == nil {
		return
	}
	a.cancel()
	if a.ended != nil {
		<-a.ended
	}
	a.remote.Close()
	_ = os.RemoveAll(a.q.Dir) // otherwise the next holder removes it
}

// settleSpeculation drops the pack unless the refs name its commit.
func (s *syncer) settleSpeculation() {
	if s.ahead == nil || s.ahead.want.Tip == s.tip.Want {
		return
	}
	s.ahead.drop()
	if s.ahead.bytes.Load() > 0 {
		s.remote.EndSpeculation(wire.Disproved)
	}
	s.ahead = nil
}

// takeSpeculation waits for the pack, which the refs have confirmed. It returns false if there is none.
func (s *syncer) takeSpeculation(ctx context.Context, into store) (received, bool) {
	a := s.ahead
	if a == nil {
		return received{}, false
	}
	s.ahead = nil
	if a.ended == nil || a.into != into {
		a.drop()
		return received{}, false
	}
	<-a.ended // ends soon after ctx
	a.cancel()
	a.remote.Close()
	if a.err != nil {
		if class := events.ClassOf(a.err); class == events.ClassServer || class == events.ClassNoRef {
			s.remote.EndSpeculation(wire.Refused)
		}
		return received{}, false
	}
	s.progress.count(a.bytes.Load())
	return a.received, true
}

// startingGate starts a speculation when a request is admitted.
type startingGate struct {
	wire.Gate
	ahead *speculation
}

func (g startingGate) Enter(ctx context.Context, host string) (wire.Permit, error) {
	permit, err := g.Gate.Enter(ctx, host)
	if err != nil {
		return nil, err
	}
	g.ahead.start()
	return lastPermit{permit}, nil
}

// lastPermit is a permit that is not kept for a fetch, which has its own.
type lastPermit struct{ wire.Permit }

func (p lastPermit) Done(ctx context.Context, a wire.Answer) error {
	a.More = false
	return p.Permit.Done(ctx, a)
}

// optionalGate is the gate of a speculation. It does not let the job wait, and ends permits with the job's context, since the
// request may be cancelled alone.
type optionalGate struct {
	wire.TryGate
	job context.Context
}

func (g optionalGate) Enter(ctx context.Context, host string) (wire.Permit, error) {
	permit, err := g.TryEnter(ctx, host)
	if err != nil {
		return nil, err
	}
	return jobPermit{permit, g.job}, nil
}

type jobPermit struct {
	wire.Permit
	job context.Context
}

func (p jobPermit) Done(_ context.Context, a wire.Answer) error { return p.Permit.Done(p.job, a) }

// byteCounter counts bytes.
type byteCounter struct{ n *atomic.Int64 }

func (c *byteCounter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
