package stream

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// The script. The head of its file says what it takes, returns and refuses.
var (
	//go:embed watermarks.lua
	watermarksSource string

	watermarksScript = redis.NewScript(groupsSource + watermarksSource)
)

// Watermarks is how far the groups of a stream have settled it.
type Watermarks struct {
	Latest    string // id of the newest entry; "0-0" without one
	Unsettled string // id of the oldest entry that some group has yet to settle, read or not; "" when there is none
}

// ReadWatermarks tells how far the groups of the stream called topic are. Of a stream without groups
// everything counts as settled; one that does not exist is an empty one. It takes one round trip, and
// costs the number of groups. The answer is not kept for later calls: whoever asks wants to know that
// no entry up to now is newer than Latest.
func ReadWatermarks(ctx context.Context, client redis.UniversalClient, topic string) (Watermarks, error) {
	reply, err := watermarksScript.Run(ctx, client, []string{topic}).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return Watermarks{}, fmt.Errorf("horizon of %s: %w", topic, err)
	}
	return Watermarks{Latest: reply[0], Unsettled: reply[1]}, nil
}
