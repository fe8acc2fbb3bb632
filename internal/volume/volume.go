package volume

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// Config configures a Volume and limits the resources of a sync. Zero fields take the defaults.
type Config struct {
	Grace        time.Duration       // how long a replaced tree stays for its readers; 5 min
	KeepNamed    time.Duration       // maximum extra time that a tree stays for unsettled results; 1 h
	KeepPrepared time.Duration       // how long a prepared tree stays unused; 24 h
	Links        checkout.LinkPolicy // symbolic links out of the tree; LinksKeep

	MaxFiles         int           // changed files listed in a result; 1,000
	MaxTreeFiles     int           // files in a tree; 1,000,000
	MaxTreeBytes     int64         // in all files of a tree; 8 GiB
	MaxFileBytes     int64         // in one file; 512 MiB
	MaxPackBytes     int64         // bytes read per fetch; 2 GiB
	MaxInflatedBytes int64         // total inflated size of the objects of one fetch; 8 GiB
	FetchTimeout     time.Duration // of one fetch; 30 min

	MaxRepoBytes   int64 // on disk, of one repository; 32 GiB
	MaxVolumeBytes int64 // on disk, of all repositories as last measured; 0: no limit
	MinFreeBytes   int64 // minimum free space for a fetch; 0: no limit

	// Results returns how far results are settled. It is called at most once per sync, under the lease, and must not
	// return a cached answer. If it is nil, unsettled results protect no tree.
	Results func(context.Context) (Horizon, error)

	// Slots limits the work on processor and disk of all jobs together; nil does not.
	Slots *Slots

	// Replaced is called when a sync has replaced the tree of a ref, so that [Volume.Prepare] is worthwhile. It must not
	// block. The request has no Fence yet. Optional.
	Replaced func(PrepareRequest)

	Net wire.Config // network access to remotes

	// Step is called with the name of each finished step, for crash tests. Optional.
	Step func(name string)
}

func (cfg Config) withDefaults() (Config, error) {
	limits := []int64{
		int64(cfg.Grace), int64(cfg.KeepNamed), int64(cfg.KeepPrepared), int64(cfg.MaxFiles), int64(cfg.MaxTreeFiles),
		cfg.MaxTreeBytes, cfg.MaxFileBytes,
		cfg.MaxPackBytes, cfg.MaxInflatedBytes, int64(cfg.FetchTimeout),
		cfg.MaxRepoBytes, cfg.MaxVolumeBytes, cfg.MinFreeBytes,
	}
	if slices.Min(limits) < 0 {
		return Config{}, errors.New("volume: a negative limit in Config")
	}
	cfg.Grace = cmp.Or(cfg.Grace, 5*time.Minute)
	cfg.Links = cmp.Or(cfg.Links, checkout.LinksKeep)
	cfg.KeepNamed = cmp.Or(cfg.KeepNamed, time.Hour)
	cfg.KeepPrepared = cmp.Or(cfg.KeepPrepared, 24*time.Hour)
	cfg.MaxFiles = cmp.Or(cfg.MaxFiles, 1000)
	cfg.MaxTreeFiles = cmp.Or(cfg.MaxTreeFiles, 1_000_000)
	cfg.MaxTreeBytes = cmp.Or(cfg.MaxTreeBytes, 8<<30)
	cfg.MaxFileBytes = cmp.Or(cfg.MaxFileBytes, 512<<20)
	cfg.MaxPackBytes = cmp.Or(cfg.MaxPackBytes, 2<<30)
	cfg.MaxInflatedBytes = cmp.Or(cfg.MaxInflatedBytes, 8<<30)
	cfg.FetchTimeout = cmp.Or(cfg.FetchTimeout, 30*time.Minute)
	cfg.MaxRepoBytes = cmp.Or(cfg.MaxRepoBytes, 32<<30)
	return cfg, nil
}

func (cfg Config) packLimits() object.Limits {
	return object.Limits{
		MaxFileBytes: cfg.MaxFileBytes, MaxInflatedBytes: cfg.MaxInflatedBytes,
		MaxTreeFiles: cfg.MaxTreeFiles, FetchTimeout: cfg.FetchTimeout,
	}
}

func (cfg Config) wireLimits(limiter wire.Limiter) wire.Limits {
	return wire.Limits{MaxPackBytes: cfg.MaxPackBytes, Timeout: cfg.FetchTimeout, Limiter: limiter}
}

func (cfg Config) checkoutLimits() checkout.Limits {
	return checkout.Limits{
		MaxFiles: cfg.MaxFiles, MaxTreeFiles: cfg.MaxTreeFiles, MaxTreeBytes: cfg.MaxTreeBytes,
		MaxFileBytes: cfg.MaxFileBytes,
	}
}

// Volume is the folder tree that Lockstep publishes to. It is safe for concurrent use, also by several processes.
type Volume struct {
	root string
	id   string
	cfg  Config
	net  *wire.Network

	janitor janitor

	exchange func(a, b string) error // see exchange
}

// OpenVolume opens the volume at root, creating the folder if necessary. It gives a new volume an ID and checks that
// the volume is writable. The error is one line and says what to do.
func OpenVolume(root string, cfg Config) (*Volume, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", root, err)
	}
	v := &Volume{root: root, cfg: cfg, exchange: exchange}
	if v.net, err = openNetwork(cfg.Net); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(v.reposDir(), 0o755); err != nil {
		return nil, disk.Error("open volume "+root, err)
	}
	if err := v.checkLayout(); err != nil {
		return nil, err
	}
	if err := Probe(root); err != nil {
		return nil, disk.Error("open volume "+root, err)
	}
	if v.id, err = v.readOrMakeID(); err != nil {
		return nil, err
	}
	return v, nil
}

// Close closes idle connections to remotes and stops deleting discarded files. The volume must not be used afterwards.
func (v *Volume) Close() {
	v.janitor.close()
	v.net.Close()
}

// ID returns the random ID that the volume got when it was first opened.
func (v *Volume) ID() string { return v.id }

// Root returns the absolute path of the volume's folder.
func (v *Volume) Root() string { return v.root }

// Names of files in the admin folder; [Volume.SweepLeftovers] recognizes leftovers by them.
const (
	tryPrefix = "try-"
	idName    = "volume"
)

// Probe checks that the file system of a volume supports publishing: write, link, rename over. It creates a
// missing folder.
func Probe(root string) error {
	if err := os.MkdirAll(filepath.Join(root, adminDir), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Join(root, adminDir), tryPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file, link, other := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "other")
	if err := disk.WriteNew(file, []byte("try\n")); err != nil {
		return err
	}
	if err := os.Link(file, filepath.Join(dir, "hard")); err != nil {
		return fmt.Errorf("hard links are needed: %w", err)
	}
	for _, name := range []string{link, other} {
		if err := os.Symlink("file", name); err != nil {
			return fmt.Errorf("symbolic links are needed: %w", err)
		}
	}
	return os.Rename(link, other)
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9]{16,64}$`)

func (v *Volume) readOrMakeID() (string, error) {
	path := filepath.Join(v.root, adminDir, idName)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if content, err = makeID(path); err != nil {
			return "", disk.Error("create the volume's ID", err)
		}
	}
	if err != nil {
		return "", disk.Error("read the volume's ID", err)
	}
	id := strings.TrimSpace(string(content))
	if !idPattern.MatchString(id) {
		return "", events.Errorf(events.Permanent, events.ClassVolume,
			"%s does not contain a volume ID; restore the file, or delete it to give the volume a new ID", path)
	}
	return id, nil
}

// makeID writes a new ID unless another process just did, and returns the one on disk.
func makeID(path string) ([]byte, error) {
	fresh := path + "-" + rand.Text()
	if err := disk.WriteNew(fresh, []byte(rand.Text()+"\n")); err != nil {
		return nil, err
	}
	defer os.Remove(fresh)
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := disk.SyncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func (v *Volume) usePath() string { return filepath.Join(v.root, adminDir, "in-use") }

// Use marks the volume as used by a worker, until release or the end of the process.
func (v *Volume) Use(ctx context.Context) (release func(), err error) {
	file, err := os.OpenFile(v.usePath(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, disk.Error("mark the volume as used", err)
	}
	if err := awaitLock(ctx, file, unix.LOCK_SH); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN); _ = file.Close() }, nil
}

// IsUsed reports whether a worker uses the volume, of any deployment.
func (v *Volume) IsUsed() (bool, error) {
	release, ok, err := claimFile(v.usePath())
	if ok {
		release()
	}
	return err == nil && !ok, disk.Error("find out whether the volume is used", err)
}

// done reports a finished step to tests.
func (v *Volume) done(step string) {
	if v.cfg.Step != nil {
		v.cfg.Step(step)
	}
}

// Asked returns the URL at which the remote with a URL is asked; see [wire.Network.Asked].
func (v *Volume) Asked(url string) string { return v.net.Asked(url) }

// Transport returns an HTTP transport with the same network rules as remotes, for hosts that the operator configures,
// such as an API that issues tokens.
func (v *Volume) Transport() http.RoundTripper { return v.net.Transport() }
