package hosts

import "context"

const maxLost = 10_000 // the rest lapse

// lose remembers a permit that is not in use although Redis may count it: the call that would have ended or refused it got
// no answer. Otherwise a host would have no permits until their leases lapse.
func (b *Budgets) lose(p *Permit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lost) < maxLost {
		b.lost = append(b.lost, p)
	}
}

// endLost ends the lost permits. It must be called after an answer of Redis, which has then run all earlier calls.
func (b *Budgets) endLost(ctx context.Context) {
	b.mu.Lock()
	lost := b.lost
	b.lost = nil
	b.mu.Unlock()
	for i, p := range lost {
		_, err := b.call(ctx, doneScript, p.req.Host, p.req.Credential, p.token, string(Ignored), 0, 0, 0, -1, 0, 0, p.req.Repo.Key())
		if err != nil {
			b.mu.Lock()
			b.lost = append(b.lost, lost[i:]...)
			b.mu.Unlock()
			return
		}
	}
}
