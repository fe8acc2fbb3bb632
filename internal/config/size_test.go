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
