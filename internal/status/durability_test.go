package status

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

func TestStatusWarnsOfRedisThatMayLoseWrites(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		set  func(t *testing.T, client redis.UniversalClient)
		want string // the line, or "" for none
	}{
		"always":   {args: []string{"--appendonly", "yes", "--appendfsync", "always"}},
		"everysec": {args: []string{"--appendonly", "yes"}, want: "persist  weak: appendfsync everysec, a crash of its machine loses up to 2 s"},
		"no AOF":   {want: "persist  weak: appendonly is off, a restart loses what is not in a snapshot"},
		"CONFIG is refused": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always"},
			set: func(t *testing.T, client redis.UniversalClient) {
				proctest.Must(client.Do(context.Background(), "ACL", "SETUSER", "default", "-config").Result())(t)
			},
			want: "persist  unknown: appendfsync could not be determined, CONFIG is refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartReal(t, tc.args...)
			client := server.Client()
			if tc.set != nil {
				tc.set(t, client)
			}
			s := proctest.Must(read(t.Context(), client, config.Config{Redis: server.URL(), Prefix: string(events.DefaultNamespace)}, nil, searchTimeout))(t)
			var rows strings.Builder
			s.Table(&rows)
			var got string
			for line := range strings.Lines(term.Align(rows.String())) {
				if strings.HasPrefix(line, "persist") {
					got = strings.TrimSuffix(line, "\n")
				}
			}
			if got != tc.want || len(got) > 80 {
				t.Errorf("got %q, want %q in at most 80 columns", got, tc.want)
			}
		})
	}
}
