package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/config"
	"lockstep/internal/forge"
)

// examineFiles checks the limits, files and addresses in the settings, except Redis and the volume. It skips empty settings.
func examineFiles(cfg config.Config, environ []string) []Check {
	checks := []Check{openFiles(cfg)}
	if cfg.Credentials != "" {
		checks = append(checks, credentialFiles(cfg.Credentials))
	}
	if cfg.Has(config.RoleReceiver) {
		sources, hooks := hookSources(cfg, environ)
		checks = append(checks, hooks...)
		if sources > 0 && cfg.Redis != "" && cfg.Spool != "" {
			checks = append(checks, spoolDirectory(cfg.Spool))
		}
	}
	if cfg.Listen != "" {
		checks = append(checks, listenAddress(cfg.Listen))
	}
	return checks
}

// filesPerSlot is the maximum number of files that a sync opens: nested directories, twice.
const filesPerSlot = 600

func openFiles(cfg config.Config) Check {
	const name = "open files"
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return refused(name, "getrlimit: %w", err)
	}
	if wanted := uint64(cfg.Slots) * filesPerSlot; limit.Cur < wanted {
		return warned(name, "at most %d, but %d slots may need %d; raise ulimit -n or lower --slots", limit.Cur, cfg.Slots, wanted)
	}
	return passed(name, "at most %d, enough for %d slots", limit.Cur, cfg.Slots)
}

// credentialFiles checks permissions. It reads no secrets.
func credentialFiles(dir string) Check {
	const name = "credentials"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return refused(name, "%w; let this user read the directory, or set another with --credentials", err)
	}
	credentials, read, changed := 0, "", ""
	check := func(path string) error {
		info, err := os.Stat(path) // follows links: Kubernetes mounts secrets as links
		switch {
		case err != nil:
			return err
		case info.Mode().Perm()&0o002 != 0 && info.Mode()&os.ModeSticky == 0:
			changed = path
		case info.Mode().Perm()&0o004 != 0 && !info.IsDir():
			read = path
		}
		return nil
	}
	err = check(dir)
	for _, entry := range entries {
		folder := filepath.Join(dir, entry.Name())
		if info, statErr := os.Stat(folder); statErr != nil || !info.IsDir() || entry.Name()[0] == '.' {
			continue
		}
		credentials++
		files, listErr := os.ReadDir(folder)
		err = errors.Join(err, listErr, check(folder))
		for _, file := range files {
			if file.Name()[0] != '.' {
				err = errors.Join(err, openable(filepath.Join(folder, file.Name())), check(filepath.Join(folder, file.Name())))
			}
		}
	}
	switch {
	case err != nil:
		return refused(name, "%w; let this user read it", err)
	case changed != "":
		return refused(name, "every user of this machine can change %s: chmod o-w", changed)
	case read != "":
		return warned(name, "every user of this machine can read %s, unless a parent directory prevents it: chmod o-r", read)
	}
	return passed(name, "%d, readable by this user", credentials)
}

// openable returns an error if a file cannot be opened for reading.
func openable(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

func hookSources(cfg config.Config, environ []string) (int, []Check) {
	const name = "webhook sources"
	sources, err := forge.LoadSources(cfg.Hooks, environ)
	if err != nil {
		return 0, []Check{refused(name, "%w", err)}
	}
	n := len(sources.Names())
	if n == 0 && cfg.Hooks == "" {
		return 0, nil
	}
	if n == 0 {
		return 0, []Check{refused(name, "%s has none; a source is a directory with the files forge and secret", cfg.Hooks)}
	}
	return n, []Check{passed(name, "%d", n)}
}

// spoolDirectory checks that a receiver can use dir. It takes no lock, so it does not disturb a running receiver.
func spoolDirectory(dir string) Check {
	const name, advice = "spool", "choose another directory with --spool"
	at := dir
	for { // the receiver creates the directory: check the nearest existing parent
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return refused(name, "%s is not a directory; %s", at, advice)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return refused(name, "%w; %s", err, advice)
		}
		at = filepath.Dir(at)
	}
	took, err := timedSync(at)
	if err != nil {
		return refused(name, "%w; let this user write there, or %s", err, advice)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err == nil && int64(uint32(st.Type)) == unix.NFS_SUPER_MAGIC {
		return warned(name, "%s is on nfs: webhooks wait for it while Redis is unavailable; %s, on a local disk", dir, advice)
	}
	if took > slowSync {
		return warned(name, "%s takes %v to sync a file: webhooks wait for that while Redis is unavailable; %s, on a faster disk", dir, took.Round(time.Millisecond), advice)
	}
	return passed(name, "%s is writable and syncs a file in %v", dir, took.Round(100*time.Microsecond))
}

// slowSync is the sync time above which a disk is probably overloaded or remote.
const slowSync = 250 * time.Millisecond

// timedSync returns the time of the fastest of three syncs of a small file in dir, because other writes may delay one.
func timedSync(dir string) (time.Duration, error) {
	file, err := os.CreateTemp(dir, ".lockstep-doctor-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	quickest := time.Hour
	for range 3 {
		if _, err := file.WriteString("try"); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := file.Sync(); err != nil {
			return 0, fmt.Errorf("sync: %w", err)
		}
		quickest = min(quickest, time.Since(began))
	}
	return quickest, nil
}

func listenAddress(address string) Check {
	const name = "listen"
	listener, err := net.Listen("tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return warned(name, "%s is in use, by a running process of this service or another program; choose another address with --listen", address)
	}
	if err != nil {
		return refused(name, "%w; choose another address with --listen", err)
	}
	_ = listener.Close()
	return passed(name, "%s is free", address)
}
