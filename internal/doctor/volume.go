package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/config"
	"lockstep/internal/disk"
	"lockstep/internal/volume"
)

// examineVolume tries a worker's file system operations in a temporary directory on the volume.
func examineVolume(cfg config.Config) (checks Checks) {
	if err := volume.Probe(cfg.Root); err != nil {
		return checks.with("volume", refused("%w; let this user write there, on a file system with hard and symbolic "+
			"links, or choose another --root", err))
	}
	checks = checks.with("volume", passed("%s is writable, with hard links and renames over links", cfg.Root))
	dir, err := os.MkdirTemp(filepath.Join(cfg.Root, ".lockstep"), "try-") // garbage collection deletes leftovers
	if err != nil {
		return checks.with("file system", refused("%w", err))
	}
	defer os.RemoveAll(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return checks.with("file system", refused("%w", err))
	}
	checks = checks.with("file system", fileSystem(st, cfg))
	checks = checks.with("file locks", fileLocks(dir))
	checks = checks.with("sync", syncing(dir))
	checks = checks.with("exchange of names", exchangeable(dir))
	checks = checks.with("free space", freeSpace(st, cfg))
	return checks.with("free inodes", freeInodes(st))
}

// fileLocks locks a file through one descriptor and expects a lock through another to be refused.
func fileLocks(dir string) Check {
	const needed = "they stop stale workers: over NFS mount version 4 or run lockd; do not mount with nolock"
	var locked [2]error
	for i := range locked {
		// over NFS an exclusive lock needs write access
		file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return refused("%w", err)
		}
		defer file.Close()
		locked[i] = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	switch {
	case locked[0] != nil:
		return refused("flock: %w; %s", locked[0], needed)
	case !errors.Is(locked[1], unix.EWOULDBLOCK):
		return refused("flock grants one lock twice: %w; %s", locked[1], needed)
	}
	return passed("works")
}

func syncing(dir string) Check {
	const advice = "%w; trees would not survive a power failure: check the disk and the mount options"
	took, err := timedSync(dir)
	if err != nil {
		return refused(advice, err)
	}
	if err := disk.SyncVolume(dir); err != nil {
		return refused(advice, err)
	}
	if took > slowSync {
		return warned("a file takes %v: every sync waits for that several times; find out what else writes "+
			"to this disk", took.Round(time.Millisecond))
	}
	return passed("a file takes %v", took.Round(100*time.Microsecond))
}

func exchangeable(dir string) Check {
	link, folder := filepath.Join(dir, "exchange-link"), filepath.Join(dir, "exchange-folder")
	if err := errors.Join(os.Symlink("a", link), os.Mkdir(folder, 0o755)); err != nil {
		return refused("%w", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, folder, unix.RENAME_EXCHANGE); err != nil {
		return warned("not supported (%v): plain clones cannot be adopted; move them away by hand", err)
	}
	return passed("works: plain clones can be adopted")
}

const overSMB = "symbolic links and file locks are unreliable over it; use NFS version 4 or a local disk"

// fileSystems maps known magic numbers of statfs to names and warnings.
var fileSystems = map[int64]struct{ name, caution string }{
	unix.EXT4_SUPER_MAGIC:      {name: "ext4"},
	unix.XFS_SUPER_MAGIC:       {name: "xfs"},
	unix.BTRFS_SUPER_MAGIC:     {name: "btrfs"},
	unix.TMPFS_MAGIC:           {"tmpfs", "it is in memory and lost at a reboot; use it for trials only"},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", "it is a container's layer and lost with the container; mount a volume"},
	unix.FUSE_SUPER_MAGIC:      {"fuse", "its abilities depend on the backend; see the other checks"},
	unix.SMB_SUPER_MAGIC:       {"smb", overSMB},
	unix.CIFS_SUPER_MAGIC:      {"cifs", overSMB},
}

func fileSystem(st unix.Statfs_t, cfg config.Config) Check {
	kind := int64(uint32(st.Type))
	if kind == unix.NFS_SUPER_MAGIC {
		return warned("nfs: readers on other machines see a new tree once their attribute caches expire (acdirmax, "+
			"60 s by default); keep tree-grace (%v) well above that and mount version 4, whose file locks all "+
			"machines share", cfg.TreeGrace)
	}
	known := fileSystems[kind]
	if known.caution != "" {
		return warned("%s: %s", known.name, known.caution)
	}
	return passed("%s", cmp.Or(known.name, fmt.Sprintf("type %#x", kind)))
}

func freeSpace(st unix.Statfs_t, cfg config.Config) Check {
	unit, reserved := max(st.Frsize, 1), int64(cfg.Limits.MinFreeBytes)
	free, size := int64(st.Bavail)*unit, int64(st.Blocks)*unit
	shown := volume.BytesText(free) + " of " + volume.BytesText(size)
	switch {
	case free < reserved:
		return refused("%s, but min-free-bytes reserves %s: fetches would be refused; free space or lower it in limits",
			shown, volume.BytesText(reserved))
	case free < 2*reserved || free < size/20:
		return warned("%s: free some space soon", shown)
	}
	return passed("%s", shown)
}

// freeInodes warns if there are fewer than one large repository has files.
func freeInodes(st unix.Statfs_t) Check {
	switch {
	case st.Files == 0:
		return passed("not counted by this file system")
	case st.Ffree == 0:
		return refused("none of %d: no file can be created; delete some or create a file system with more", st.Files)
	case st.Ffree < 100_000 || st.Ffree < st.Files/20:
		return warned("%d of %d: trees need many; free some or create a file system with more", st.Ffree, st.Files)
	}
	return passed("%d of %d", st.Ffree, st.Files)
}
