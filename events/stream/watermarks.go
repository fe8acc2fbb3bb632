package stream

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// ReadWatermarks returns the IDs of the newest entry of the stream called topic, "0-0" if there is none, and
// of the oldest entry that at least one group has not settled, read or not, "" if there is none. In a stream
// without groups every entry counts as settled; a stream that does not exist counts as empty. It takes one
// round trip and its cost is proportional to the number of groups.
func ReadWatermarks(
	ctx context.Context, client redis.UniversalClient, topic string,
) (latest, unsettled string, err error) {
	reply, err := watermarksScript.Run(ctx, client, []string{topic}).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return "", "", fmt.Errorf("watermarks of %s: %w", topic, err)
	}
	return reply[0], reply[1], nil
}
