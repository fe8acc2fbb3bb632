package hosts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Lifted is a block that was lifted.
type Lifted struct {
	Reason     Reason
	Until      time.Time // its end otherwise, by the local clock
	Credential string    // "" if it was the host's, or that of anonymous requests
}

// Clear lifts the block of a host and those of all its credentials, or of one credential, if not nil. It returns what was
// lifted, in the order of the credentials. Requests begin slowly again, with one at a time per credential; waiting repositories are woken within a second.
func (r Reader) Clear(ctx context.Context, host string, credential *string) ([]Lifted, error) {
	name, all := "", 1
	if credential != nil {
		name, all = *credential, 0
	}
	state := r.Prefix + hostInfix + encode(host)
	maximum := cmp.Or(r.Overrides[host].Permits, r.Limit, defaultLimit)
	before := time.Now().Add(time.Duration(r.offset) * time.Millisecond)
	reply, err := clearScript.Run(ctx, r.Redis, []string{state, r.Prefix + dueSuffix},
		r.offset, maximum, encode(host), encode(name), all, blockMemory.Milliseconds()).Slice()
	if err != nil {
		return nil, fmt.Errorf("lift the limits of %s: %w", host, err)
	}
	if len(reply) != 2 {
		return nil, fmt.Errorf("lift the limits of %s: unexpected reply of clear.lua", host)
	}
	values, _ := reply[1].([]any)
	var lifted []Lifted
	for one := range slices.Chunk(values, 3) {
		if len(one) == 3 {
			until := moment(before, number(reply[0]), number(one[1]))
			lifted = append(lifted, Lifted{Reason(text(one[0])), until, decode(text(one[2]))})
		}
	}
	slices.SortStableFunc(lifted, func(a, b Lifted) int { return strings.Compare(a.Credential, b.Credential) })
	return lifted, nil
}
