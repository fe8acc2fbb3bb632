package stream

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Watermarks are the positions of the newest and the oldest unsettled entry of a stream.
type Watermarks struct {
	Latest    string // ID of the newest entry; "0-0" if there is none
	Unsettled string // ID of the oldest entry that at least one group has not settled, read or not; "" if there is none
}

// ReadWatermarks reads the watermarks of the stream called topic. In a stream without groups every entry counts
// as settled; a stream that does not exist counts as empty. It takes one round trip and its cost is
// proportional to the number of groups.
func ReadWatermarks(ctx context.Context, client redis.UniversalClient, topic string) (Watermarks, error) {
	reply, err := watermarksScript.Run(ctx, client, []string{topic}).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return Watermarks{}, fmt.Errorf("watermarks of %s: %w", topic, err)
	}
	return Watermarks{Latest: reply[0], Unsettled: reply[1]}, nil
}
