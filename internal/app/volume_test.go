package app

import (
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
)

func TestNewerFormatInRedisIsRefused(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	vol := testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(vol.Close)
	key := events.DefaultNamespace.Volume()
	testenv.Must(client.Set(t.Context(), key, "format 2 "+vol.ID(), 0).Result())(t)
	err := ClaimVolume(t.Context(), client, events.DefaultNamespace, vol)
	if err == nil || !strings.Contains(err.Error(), "have format 2, but this version supports format 1 only: run a newer version") {
		t.Errorf("%v", err)
	}
	testenv.Must(client.Del(t.Context(), key).Result())(t)
	testenv.Must(0, ClaimVolume(t.Context(), client, events.DefaultNamespace, vol))(t)
}
