package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Timeouts bound the time for which a host sends nothing. Zero fields have the defaults, which suit large
// repositories on busy servers.
type Timeouts struct {
	Refs    time.Duration // until the first byte of a list of refs, including the time to connect; default 60 s
	Pack    time.Duration // the same of a pack or a file: a server may count objects first; default 120 s
	Silence time.Duration // between two bytes of a response; default 60 s
}

// timeouts returns the timeouts of a host, as [Limiter] names it.
func (n *Network) timeouts(host string) Timeouts {
	own, usual := n.hostTimeouts[host], n.hostTimeouts[""]
	return Timeouts{
		Refs:    cmp.Or(own.Refs, usual.Refs, 60*time.Second),
		Pack:    cmp.Or(own.Pack, usual.Pack, 120*time.Second),
		Silence: cmp.Or(own.Silence, usual.Silence, 60*time.Second),
	}
}

// timeoutFault is the fault of a host that has exceeded one of its timeouts.
type timeoutFault struct {
	setting string // refs, pack or silence
	limit   time.Duration
}

func (e *timeoutFault) Error() string {
	what := map[string]string{"refs": "no list of refs", "pack": "nothing of what was asked for", "silence": "no data"}
	return fmt.Sprintf("%s within %v; raise %s in the setting host-timeouts if the host is that slow", what[e.setting],
		e.limit, e.setting)
}

// awaitFirst cancels a request unless its response begins in time: the caller then stops the timer.
func (t Timeouts) awaitFirst(cancel context.CancelCauseFunc, listing bool) *time.Timer {
	late := &timeoutFault{"pack", t.Pack}
	if listing {
		late = &timeoutFault{"refs", t.Refs}
	}
	return time.AfterFunc(late.limit, func() { cancel(late) })
}

// timeoutOr returns the timeout that has ended ctx, or else err.
func timeoutOr(ctx context.Context, err error) error {
	if late, ok := errors.AsType[*timeoutFault](context.Cause(ctx)); ok {
		return late
	}
	return err
}
