package server

import (
	"net/netip"
	"sync"
)

// share is how much of what stays free one source may hold, and one sender of what stays free to its source. With 4, a
// lone sender can fill three quarters of the budget, and any number of greedy ones leaves room for the next.
const share = 4

// budget limits the memory of all request bodies, and divides it between sources and their senders: the largest
// holders are refused first. It is safe for concurrent use.
type budget struct {
	limit int64

	mu      sync.Mutex
	used    int64
	sources map[string]*sourceUse // without those that hold nothing
}

type sourceUse struct {
	used    int64
	senders map[netip.Prefix]int64
}

func newBudget(limit int64) *budget { return &budget{limit: limit, sources: map[string]*sourceUse{}} }

// reserve reserves bytes for a sender's delivery to a source, unless the budget, the source's or the sender's share is
// used up.
func (b *budget) reserve(source string, sender netip.Prefix, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := int64(bytes)
	of := b.sources[source]
	if of == nil {
		of = &sourceUse{senders: map[netip.Prefix]int64{}}
	}
	free := share*(b.limit-b.used-n) - of.used - n // the remaining share of the source
	if free < 0 || of.senders[sender]+n > share*free {
		return false
	}
	b.used += n
	of.used += n
	of.senders[sender] += n
	b.sources[source] = of
	return true
}

func (b *budget) release(source string, sender netip.Prefix, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.sources[source]
	if of == nil {
		return
	}
	n := int64(bytes)
	b.used -= n
	if of.used -= n; of.used == 0 {
		delete(b.sources, source)
	}
	if of.senders[sender] -= n; of.senders[sender] == 0 {
		delete(of.senders, sender)
	}
}
