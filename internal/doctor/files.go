package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/config"
	"lockstep/internal/forge"
)

// examineFiles checks the limits and files in the settings, except Redis and the volume. It skips empty settings.
func examineFiles(cfg config.Config, environ []string) (checks Checks) {
	checks = checks.with("open files", openFiles(cfg))
	if cfg.Credentials != "" {
		checks = checks.with("credentials", credentialFiles(cfg.Credentials))
	}
	if cfg.Has(config.RoleReceiver) {
		sources, err := forge.LoadSources(cfg.Hooks, environ)
		switch {
		case err != nil:
			checks = checks.with("webhook sources", refused("%w", err))
		case len(sources.Names()) > 0:
			checks = checks.with("webhook sources", passed("%d", len(sources.Names())))
			if cfg.Redis != "" && cfg.Spool != "" {
				checks = checks.with("spool", spoolDirectory(cfg.Spool))
			}
		}
	}
	return checks
}

// filesInFlight are the files and connections of 1,024 changes in flight, most of which wait.
const filesInFlight = 4 * 1024

// openFiles counts 600 files for each slot, because a sync opens nested directories, twice, and some for other changes.
func openFiles(cfg config.Config) Check {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return refused("getrlimit: %w", err)
	}
	if wanted := uint64(cfg.Slots)*600 + filesInFlight; limit.Cur < wanted {
		return warned("at most %d, but %d slots may need %d; raise ulimit -n or lower --slots", limit.Cur, cfg.Slots, wanted)
	}
	return passed("at most %d, enough for %d slots", limit.Cur, cfg.Slots)
}

// credentialFiles checks permissions. It reads no secrets.
func credentialFiles(dir string) Check {
	folders, _ := fs.Glob(os.DirFS(dir), "[^.]*") // an error is that of a pattern
	files, _ := fs.Glob(os.DirFS(dir), "[^.]*/[^.]*")
	credentials, public := 0, ""
	for _, name := range slices.Concat([]string{"."}, folders, files) {
		path := filepath.Join(dir, name)
		file, err := os.Open(path) // follows links: Kubernetes mounts secrets as links
		if err != nil {
			return refused("%w; let this user read it", err)
		}
		info, err := file.Stat()
		_ = file.Close()
		switch {
		case err != nil:
			return refused("%w", err)
		case info.Mode().Perm()&0o002 != 0 && info.Mode()&os.ModeSticky == 0:
			return refused("every user of this machine can change %s: chmod o-w", path)
		case info.IsDir() && name != ".":
			credentials++
		case info.Mode().Perm()&0o004 != 0 && !info.IsDir():
			public = path
		}
	}
	if public != "" {
		return warned("every user of this machine can read %s, unless a parent directory prevents it: chmod o-r", public)
	}
	return passed("%d, readable by this user", credentials)
}

// spoolDirectory checks that a receiver can use dir. It takes no lock, so it does not disturb a running receiver.
func spoolDirectory(dir string) Check {
	const advice = "%w; let this user write there, or choose another directory with --spool"
	took, err := timedSync(dir)
	if err != nil {
		return refused(advice, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return refused(advice, err)
	}
	if int64(uint32(st.Type)) == unix.NFS_SUPER_MAGIC || took > slowSync {
		return warned("%s is on nfs or takes long to sync a file (%v): webhooks wait for that while Redis is unavailable; "+
			"choose another directory with --spool, on a fast local disk", dir, took.Round(time.Millisecond))
	}
	return passed("%s is writable and syncs a file in %v", dir, took.Round(100*time.Microsecond))
}

// slowSync is the sync time above which a disk is probably overloaded or remote.
const slowSync = 250 * time.Millisecond

// timedSync returns the time of the fastest of three syncs of a small file in dir, because other writes may
// delay one. It makes dir.
func timedSync(dir string) (time.Duration, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(dir, ".lockstep-doctor-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	quickest := time.Hour
	for range 3 {
		_, failed := file.WriteString("try")
		began := time.Now()
		if err := errors.Join(failed, file.Sync()); err != nil {
			return 0, err
		}
		quickest = min(quickest, time.Since(began))
	}
	return quickest, nil
}
