package availability

import (
	"context"
	"path/filepath"

	"lockstep/bench/rig"
)

// linker is one worker that publishes as git-sync does.
type linker struct {
	*rig.GitSync
	wanted        chan struct{} // with room for one announcement
	syncs, failed int
}

func startLinker(ctx context.Context, t *turn) (syncer, error) {
	git, err := rig.OpenGitSync(ctx, t.git.URL(t.repo), filepath.Join(t.dir, "git-sync"), 1)
	return &linker{GitSync: git, wanted: make(chan struct{}, 1)}, err
}

func (s *linker) published() string { return s.Published() }

func (s *linker) pushed(context.Context, string) error {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
	return nil
}

func (s *linker) run(ctx context.Context) error {
	for {
		select {
		case <-s.wanted:
		case <-ctx.Done():
			return nil
		}
		_, err := s.Publish(ctx)
		if err == nil {
			err = s.Tidy(ctx)
		}
		switch {
		case err == nil:
			s.syncs++
		case ctx.Err() == nil: // otherwise the run has ended
			s.failed++
		}
	}
}

func (s *linker) report(result *Result) { result.Syncs, result.Failed = s.syncs, s.failed }
