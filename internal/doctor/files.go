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

// examineFiles looks at what the settings name beside Redis and the volume. What is not set is passed over.
func examineFiles(cfg config.Config, environ []string) []Check {
	checks := []Check{openFiles(cfg)}
	if cfg.Credentials != "" {
		checks = append(checks, credentialFiles(cfg.Credentials))
	}
	if cfg.Has(config.RoleReceiver) {
		sources, hooks := hookSources(cfg, environ)
		checks = append(checks, hooks...)
		if sources > 0 && cfg.Redis != "" && cfg.Spool != "" {
			checks = append(checks, spoolFolder(cfg.Spool))
		}
	}
	if cfg.Listen != "" {
		checks = append(checks, listenAddress(cfg.Listen))
	}
	return checks
}

// filesPerSlot is how many files a sync may have open, at the worst: folders within folders, twice.
const filesPerSlot = 600

func openFiles(cfg config.Config) Check {
	const name = "open files"
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return refused(name, "getrlimit: %w", err)
	}
	if wanted := uint64(cfg.Slots) * filesPerSlot; limit.Cur < wanted {
		return warned(name, "at most %d, and %d slots may want %d at the worst; raise ulimit -n, or lower --slots", limit.Cur, cfg.Slots, wanted)
	}
	return passed(name, "at most %d, enough for %d slots", limit.Cur, cfg.Slots)
}

// credentialFiles looks at who else may read or change the secrets, and at none of these.
func credentialFiles(dir string) Check {
	const name = "credentials"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return refused(name, "%w; let this user read the folder, or name another with --credentials", err)
	}
	credentials, read, changed := 0, "", ""
	look := func(path string) error {
		info, err := os.Stat(path) // what a link leads to: Kubernetes mounts secrets so
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
	err = look(dir)
	for _, entry := range entries {
		folder := filepath.Join(dir, entry.Name())
		if info, statErr := os.Stat(folder); statErr != nil || !info.IsDir() || entry.Name()[0] == '.' {
			continue
		}
		credentials++
		files, listErr := os.ReadDir(folder)
		err = errors.Join(err, listErr, look(folder))
		for _, file := range files {
			if file.Name()[0] != '.' {
				err = errors.Join(err, openable(filepath.Join(folder, file.Name())), look(filepath.Join(folder, file.Name())))
			}
		}
	}
	switch {
	case err != nil:
		return refused(name, "%w; let this user read what is there", err)
	case changed != "":
		return refused(name, "everybody on this machine may change %s: chmod o-w", changed)
	case read != "":
		return warned(name, "everybody on this machine may read %s, if the folders above it let them: chmod o-r", read)
	}
	return passed(name, "%d, to be read by this user", credentials)
}

// openable reports whether a file can be read, and reads nothing of it.
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
		return 0, []Check{refused(name, "%s has none; a source is a folder with the files forge and secret", cfg.Hooks)}
	}
	return n, []Check{passed(name, "%d", n)}
}

// spoolFolder tries out what a receiver does there. It takes no lock, so that one which runs is not disturbed.
func spoolFolder(dir string) Check {
	const name, advice = "spool", "choose another folder with --spool"
	at := dir
	for { // the folder is made when it is needed: the nearest one that is there tells whether it can be
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return refused(name, "%s is no folder; %s", at, advice)
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
		return warned(name, "%s is on nfs: a webhook that is taken while Redis is away waits for it; %s, on a disk of this machine", dir, advice)
	}
	if took > slowSync {
		return warned(name, "%s takes %v to sync a file: webhooks wait for that while Redis is away; %s, on a quicker disk", dir, took.Round(time.Millisecond), advice)
	}
	return passed(name, "%s can be written to, and syncs a file in %v", dir, took.Round(100*time.Microsecond))
}

// slowSync is what a disk takes that is overloaded, or far away.
const slowSync = 250 * time.Millisecond

// timedSync writes a file in dir, syncs it, and deletes it. It tries three times, and the quickest counts: one may
// have to wait for what others have written just then.
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
		return warned(name, "%s is taken: by a process of this service that runs, or by another; choose another address with --listen", address)
	}
	if err != nil {
		return refused(name, "%w; choose another address with --listen", err)
	}
	_ = listener.Close() // nobody has connected
	return passed(name, "%s is free", address)
}
