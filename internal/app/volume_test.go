package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/execute"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
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

func TestVolumeOfAnotherDeploymentIsRefusedWhileThatUsesIt(t *testing.T) {
	t.Parallel()
	ours, theirs := redistest.Start(t).Client(), redistest.Start(t).Client()
	vol := testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(vol.Close)
	namespace := events.DefaultNamespace
	testenv.Must(0, ClaimVolume(t.Context(), ours, namespace, vol))(t)
	release := testenv.Must(vol.Use(t.Context()))(t)
	if err := ClaimVolume(t.Context(), theirs, namespace, vol); err == nil || !strings.Contains(err.Error(), "another deployment") {
		t.Errorf("another Redis: %v", err)
	}
	testenv.Must(0, ClaimVolume(t.Context(), ours, namespace, vol))(t)
	second := testenv.Must(vol.Use(t.Context()))(t)

	ctx, stop := context.WithCancel(t.Context())
	var registering sync.WaitGroup
	registering.Go(func() { keepRegistered(ctx, ours, namespace, vol, slog.New(slog.DiscardHandler)) })
	testenv.Must(ours.FlushDB(t.Context()).Result())(t)
	testenv.Must(0, ClaimVolume(t.Context(), ours, namespace, vol))(t) // Redis has lost it: the worker registers it again
	stop()
	registering.Wait()
	release()
	if used := testenv.Must(vol.IsUsed())(t); !used {
		t.Error("not used by the second worker")
	}
	second()
	testenv.Must(0, ClaimVolume(t.Context(), theirs, namespace, vol))(t)
}

func TestEmptyRootIsNotMounted(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	vol := testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(vol.Close)
	cfg := config.Config{Root: vol.Root()}
	testenv.Must(0, ClaimVolume(t.Context(), client, cfg.Namespace(), vol))(t)
	testenv.Must(0, isMounted(t.Context(), cfg, client))(t)
	other := testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(other.Close)
	for _, root := range []string{t.TempDir(), other.Root()} {
		cfg.Root = root
		process := Config{Config: cfg, commands: map[string]execute.Command{"docs": {}}, Redis: testenv.Must(redisx.Parse("redis://"+
			client.(*redis.Client).Options().Addr, nil))(t)}
		if err := runNotifier(t.Context(), process); !errors.Is(err, errNotMounted) {
			t.Errorf("%s: %v", root, err)
		}
	}
}
