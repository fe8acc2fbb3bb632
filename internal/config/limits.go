package config

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Limits are the setting limits, parsed: what a repository, a fetch and the volume may use.
type Limits struct {
	MaxTreeFiles     int
	MaxTreeBytes     Size
	MaxFileBytes     Size
	MaxPackBytes     Size
	MaxInflatedBytes Size
	MaxRepoBytes     Size
	FetchTimeout     time.Duration

	MaxVolumeBytes Size // 0: no limit
	MinFreeBytes   Size
}

var defaultLimits = Limits{
	MaxTreeFiles: 1_000_000, MaxTreeBytes: 8 << 30, MaxFileBytes: 512 << 20, MaxPackBytes: 2 << 30,
	MaxInflatedBytes: 8 << 30, MaxRepoBytes: 32 << 30,
	FetchTimeout: 30 * time.Minute, MinFreeBytes: 512 << 20,
}

// largeLimits has 8 times the sizes and counts of defaultLimits, and 4 times its timeout. It does not change
// what the volume may use.
var largeLimits = Limits{
	MaxTreeFiles: 8_000_000, MaxTreeBytes: 64 << 30, MaxFileBytes: 4 << 30, MaxPackBytes: 16 << 30,
	MaxInflatedBytes: 64 << 30, MaxRepoBytes: 256 << 30,
	FetchTimeout: 2 * time.Hour, MinFreeBytes: 512 << 20,
}

// byName returns the limits of l by name, in the order of the documentation. Their values point into l.
func (l *Limits) byName() *pflag.FlagSet {
	set := pflag.NewFlagSet("limits", pflag.ContinueOnError)
	set.SortFlags = false
	set.IntVar(&l.MaxTreeFiles, "max-tree-files", l.MaxTreeFiles, "maximum number of files in a tree")
	set.Var(&l.MaxTreeBytes, "max-tree-bytes", "maximum size of all files in a tree")
	set.Var(&l.MaxFileBytes, "max-file-bytes", "maximum size of a single file")
	set.Var(&l.MaxPackBytes, "max-pack-bytes", "maximum size of what a remote may send in one fetch")
	set.Var(&l.MaxInflatedBytes, "max-inflated-bytes", "maximum size of the objects of one fetch once decompressed")
	set.Var(&l.MaxRepoBytes, "max-repo-bytes", "size on disk above which a repository is no longer fetched")
	set.DurationVar(&l.FetchTimeout, "fetch-timeout", l.FetchTimeout,
		"maximum duration for a remote to send its refs, or its objects")
	set.Var(&l.MaxVolumeBytes, "max-volume-bytes", "size on disk of all repositories, as last measured, "+
		"above which nothing is fetched; 0: no limit")
	set.Var(&l.MinFreeBytes, "min-free-bytes", "free space on the volume below which nothing is fetched")
	return set
}

// parseLimits parses one scale, default or large, and pairs such as max-pack-bytes=4GiB, each of which
// replaces a limit of the scale.
func parseLimits(items []string) (Limits, error) {
	limits, scale := defaultLimits, ""
	for _, item := range items {
		switch {
		case strings.Contains(item, "="):
		case scale != "":
			return Limits{}, fmt.Errorf("limits: %s and %s exclude each other", scale, item)
		case item == "large":
			limits, scale = largeLimits, item
		case item == "default":
			scale = item
		default:
			return Limits{}, fmt.Errorf("limits %q: want default or large, and pairs such as max-pack-bytes=4GiB", item)
		}
	}
	set := limits.byName()
	for _, item := range items {
		name, text, single := strings.Cut(item, "=")
		if !single {
			continue
		}
		limit := set.Lookup(name)
		if limit == nil {
			return Limits{}, fmt.Errorf("limits: no limit is called %q; want max-pack-bytes or another of "+
				"docs/configuration.md", name)
		}
		if err := limit.Value.Set(text); err != nil {
			return Limits{}, fmt.Errorf("limits: %s %q: %w", name, text, err)
		}
	}
	return limits, limits.check()
}

func (l Limits) check() error {
	err := cmp.Or(
		atLeast("max-tree-files", l.MaxTreeFiles, 1, "at least 1"),
		atLeast("max-tree-bytes", l.MaxTreeBytes, 1<<20, "at least 1MiB"),
		atLeast("max-file-bytes", l.MaxFileBytes, 1<<20, "at least 1MiB"),
		atLeast("max-pack-bytes", l.MaxPackBytes, 1<<20, "at least 1MiB"),
		atLeast("max-inflated-bytes", l.MaxInflatedBytes, 1<<20, "at least 1MiB"),
		atLeast("max-repo-bytes", l.MaxRepoBytes, 1<<20, "at least 1MiB"),
		atLeast("fetch-timeout", l.FetchTimeout, time.Second, "at least 1s"),
		atLeast("max-volume-bytes", l.MaxVolumeBytes, 0, "0 or more"),
		atLeast("min-free-bytes", l.MinFreeBytes, 0, "0 or more"),
	)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	return nil
}
