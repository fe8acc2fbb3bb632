package router

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
)

// phases makes a span of each phase of a job, as its progress tells of them.
type phases struct {
	ctx  context.Context // of the job's span
	pass func(events.Progress)

	mu   sync.Mutex
	now  events.Phase
	span trace.Span // of now; nil before the first
	done map[string]int64
	over bool
}

// followed calls the handler, and makes spans of its phases if the job's is recorded.
func (c *Changes) followed(ctx context.Context, job events.Job) (outcome events.Outcome, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return c.Handler(ctx, job)
	}
	span.SetAttributes(attrFence.Int64(int64(job.Fence)))
	p := &phases{ctx: ctx, pass: job.Progress, done: map[string]int64{}}
	if only, ok := onlyPhase[job.Change.Type]; ok {
		p.enter(events.Progress{Phase: only})
	}
	job.Progress = p.progress
	defer func() { p.end(err) }()
	return c.Handler(ctx, job)
}

func (p *phases) progress(progress events.Progress) {
	p.enter(progress)
	p.pass(progress)
}

func (p *phases) enter(progress events.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if progress.Phase != p.now {
		p.leave(nil)
		p.now, p.span = progress.Phase, child(p.ctx, string(progress.Phase))
	}
	if progress.Unit != "" && progress.Done > 0 {
		p.done[progress.Unit] = progress.Done
	}
}

// leave ends the phase's span. The caller holds mu.
func (p *phases) leave(err error) {
	if p.span == nil {
		return
	}
	for unit, n := range p.done {
		p.span.SetAttributes(attribute.Int64("lockstep."+unit, n))
	}
	clear(p.done)
	end(p.span, err)
	p.span = nil
}

// end ends the last phase with what became of the work. Who is late with news of it is not heard.
func (p *phases) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(err)
	p.over = true
}
