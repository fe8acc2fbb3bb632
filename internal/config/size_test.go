package config_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"lockstep/internal/config"
)

func TestSizesAreReadWithAndWithoutUnit(t *testing.T) {
	for text, want := range map[string]config.Size{
		"0": 0, "-1": -1, "1048576": 1 << 20, "8GiB": 8 << 30, "8 GiB": 8 << 30, " 10mib ": 10 << 20, "512Mi": 512 << 20, "1.5GiB": 3 << 29, "7EiB": 7 << 60,
		"9223372036854775807": math.MaxInt64,
	} {
		if got, err := config.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "1.5", "8GB", "8 GiB/s", "1e3MiB", "8EiB", "+InfKiB", "NaNMiB", "0x10", "8Gi B", "8iB", "1_000", "99999999999999999999"} {
		if got, err := config.ParseSize(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}

func TestSizesArePrintedAsTheyAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := config.Size(rapid.Int64().Draw(t, "size")) << rapid.IntRange(0, 60).Draw(t, "shift")
		if got, err := config.ParseSize(size.String()); err != nil || got != size {
			t.Errorf("%d is printed as %q, read as %d, %v", int64(size), size, int64(got), err)
		}
	})
}

func TestSizesInEachSource(t *testing.T) {
	file := write(t, "max-repo-bytes: 64GiB\nmax-tree-bytes: 1073741824\nmax-pack-bytes: \"3 GiB\"\n")
	c, err := config.Load(flags(t, "--min-free-bytes", "10MiB"), file, []string{"LOCKSTEP_SPOOL_MAX_BYTES=20MiB", "LOCKSTEP_MAX_FILE_BYTES=2097152"})
	if err != nil || c.MaxRepoBytes != 64<<30 || c.MaxTreeBytes != 1<<30 || c.MaxPackBytes != 3<<30 || c.MinFreeBytes != 10<<20 || c.SpoolMaxBytes != 20<<20 ||
		c.MaxFileBytes != 2<<20 || c.MaxInflatedBytes != 8<<30 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, v := range c.Values() {
		if size, ok := v.Value.(config.Size); v.Name == "min-free-bytes" && (!ok || size.String() != "10MiB") {
			t.Errorf("min-free-bytes is printed as %v", v.Value)
		}
	}
}
