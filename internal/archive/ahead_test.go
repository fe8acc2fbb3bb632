package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lockstep/internal/archive"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// many has files of sizes about those of blocks and chunks, many small ones, links, and long names, in a few hundred folders.
func many() gitserver.Edit {
	edit := every()
	noise := make([]byte, 300<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	random := newText(7)
	for n, size := range []int{1, 511, 512, 513, 64<<10 - 1, 64 << 10, 64<<10 + 1, 127 << 10, 128<<10 - 512, 128<<10 - 1, 128 << 10, 128<<10 + 1, 300 << 10} {
		edit.Write[fmt.Sprintf("noise/%d", n)], edit.Write[fmt.Sprintf("text/%d", n)] = string(noise[:size]), random(size)[:size]
	}
	for n := range 600 {
		edit.Write[fmt.Sprintf("many/%d/%d/%d", n%7, n%300, n)] = random(n % 400)
		if n%10 == 0 {
			edit.Link[fmt.Sprintf("links/%d", n)] = fmt.Sprintf("../many/%d", n)
			edit.Write[fmt.Sprintf("%s%d", strings.Repeat("long/", 25), n)] = ""
		}
	}
	return edit
}

// TestFilesAreReadAhead makes archives in several ways of a tree of many files. TestMain checks that no goroutine is left.
func TestFilesAreReadAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	edit := many()
	opened := w.commit(edit)
	files := len(edit.Write) + len(edit.Exec) + len(edit.Link) + len(edit.Submodule) + 1
	t.Run("the bytes do not depend on timing", func(t *testing.T) { bytesDoNotDependOnTiming(t, opened, files) })
	t.Run("nothing goes on after an error", func(t *testing.T) { nothingGoesOnAfterAnError(t, opened) })
	t.Run("a writer may panic", func(t *testing.T) { writerMayPanic(t, opened) })
}

// bytesDoNotDependOnTiming compares archives with one that is made in one goroutine with package tar.
func bytesDoNotDependOnTiming(t *testing.T, opened *tree.Tree, files int) {
	packed := write(t, opened, archive.TarZst)
	var want bytes.Buffer
	encoder := testenv.Must(zstd.NewWriter(&want, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20)))(t)
	decoder := testenv.Must(zstd.NewReader(bytes.NewReader(packed)))(t)
	defer decoder.Close()
	out := tar.NewWriter(encoder)
	var names []string
	for in := tar.NewReader(decoder); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testenv.Must(0, err)(t)
		names = append(names, strings.TrimSuffix(header.Name, "/"))
		header.Format, header.PAXRecords = tar.FormatUnknown, nil
		testenv.Must(0, out.WriteHeader(header))(t)
		testenv.Must(io.Copy(out, in))(t)
	}
	testenv.Must(0, errors.Join(out.Close(), encoder.Close()))(t)
	if !bytes.Equal(packed, want.Bytes()) {
		t.Errorf("%d bytes are not the %d of one goroutine", len(packed), want.Len())
	}
	if !slices.IsSorted(names) || len(names) != files {
		t.Errorf("%d files, sorted %v", len(names), slices.IsSorted(names))
	}
	for n := range 10 { // at once, to readers of several speeds
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var got bytes.Buffer
			contents := archive.New(opened, archive.Options{})
			testenv.Must(0, contents.Write(t.Context(), &slow{w: &got, every: n}, archive.TarZst))(t)
			if !bytes.Equal(got.Bytes(), packed) {
				t.Error("other bytes")
			}
		})
	}
}

// slow is a writer that sleeps after some writes.
type slow struct {
	w                io.Writer
	every, n, failAt int
	ended            atomic.Bool
	late             atomic.Bool // a write after the end
}

func (s *slow) Write(p []byte) (int, error) {
	if s.ended.Load() {
		s.late.Store(true)
	}
	if s.every > 0 && s.n%s.every == 0 {
		time.Sleep(time.Millisecond)
	}
	if s.n++; s.n == s.failAt {
		return 0, io.ErrClosedPipe
	}
	return s.w.Write(p)
}

// nothingGoesOnAfterAnError ends archives in several ways at several moments.
func nothingGoesOnAfterAnError(t *testing.T, opened *tree.Tree) {
	contents := archive.New(opened, archive.Options{})
	stopped := errors.New("stopped")
	for _, f := range []archive.Format{archive.TarZst, archive.TarGz} {
		for at := 1; at < 10; at += 3 {
			out := &slow{w: io.Discard, failAt: at}
			if err := contents.Write(t.Context(), out, f); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s, write %d fails: %v", f, at, err)
			}
			out.ended.Store(true)
			ctx, cancel := context.WithCancelCause(t.Context())
			writes := 0
			cancelled := &slow{w: writerFunc(func(p []byte) (int, error) {
				if writes++; writes == at {
					cancel(stopped)
				}
				return len(p), nil
			})}
			if err := contents.Write(ctx, cancelled, f); !errors.Is(err, stopped) {
				t.Errorf("%s, cancelled: %v", f, err)
			}
			cancel(nil)
			cancelled.ended.Store(true)
			if out.late.Load() || cancelled.late.Load() {
				t.Errorf("%s: a write after the end", f)
			}
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// writerMayPanic has a panic like those that end the response of an HTTP server.
func writerMayPanic(t *testing.T, opened *tree.Tree) {
	contents := archive.New(opened, archive.Options{})
	defer func() {
		if got := recover(); got != "enough" {
			t.Errorf("panic %v", got)
		}
	}()
	_ = contents.Write(t.Context(), writerFunc(func([]byte) (int, error) { panic("enough") }), archive.TarGz)
}

// TestFileOf4GiB has a file whose size does not fit into the list of files, and reads its header.
func TestFileOf4GiB(t *testing.T) {
	testenv.Long(t) // compresses some hundred MB before the first write
	t.Parallel()
	w := newWorld(t)
	opened := w.commit(every())
	const size = 4<<30 + 3
	testenv.Must(0, os.Truncate(filepath.Join(opened.Dir(), "docs/a.md"), size))(t)
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := archive.New(opened, archive.Options{Paths: []string{"docs"}}).Write(ctx, in, archive.TarZst)
		in.CloseWithError(err)
		ended <- err
	}()
	decoder := testenv.Must(zstd.NewReader(out))(t)
	defer decoder.Close()
	if header := testenv.Must(tar.NewReader(decoder).Next())(t); header.Name != "docs/a.md" || header.Size != size {
		t.Errorf("%s, %d bytes", header.Name, header.Size)
	}
	cancel()
	_, _ = io.Copy(io.Discard, out)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
