package checkout

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

// TestTreeBytesBeyond32Bits uses a sparse file of 4 GiB + 1 byte, whose size in a Git index is 1.
func TestTreeBytesBeyond32Bits(t *testing.T) {
	const size = 1<<32 + 1
	last, dst := t.TempDir(), t.TempDir()
	file := filepath.Join(last, "large")
	testenv.Must(0, os.WriteFile(file, nil, 0o644))(t)
	testenv.Must(0, os.Truncate(file, size))(t)
	var st unix.Stat_t
	testenv.Must(0, unix.Stat(file, &st))(t)
	large := describe(entry{path: "large", mode: filemode.Regular}, st, object.SHA1)

	objects := object.Open(t.TempDir())
	defer objects.Close()
	b := &builder{writer: writer{objects: objects, links: LinksKeep}, maxBytes: size - 1, items: []Item{(&Plan{}).unchanged(large)}, count: func(int64) {}}
	_, _, err := b.build(t.Context(), dst, last)
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)

	b = &builder{writer: b.writer, prepared: true, maxBytes: size - 1, items: b.items, count: b.count}
	_, _, err = b.build(t.Context(), last, "") // as a prepared tree
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
}
