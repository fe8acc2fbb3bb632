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
	"testing"

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

func TestArchiveOfManyFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	edit := many()
	opened := w.commit(edit)
	files := len(edit.Write) + len(edit.Exec) + len(edit.Link) + len(edit.Submodule) + 1
	t.Run("the bytes are those of package tar", func(t *testing.T) { bytesAreThoseOfPackageTar(t, opened, files) })
	t.Run("an error or a cancellation ends it", func(t *testing.T) { errorOrCancellationEndsIt(t, opened) })
}

// bytesAreThoseOfPackageTar packs the entries of an archive again.
func bytesAreThoseOfPackageTar(t *testing.T, opened *tree.Tree, files int) {
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
		t.Errorf("%d bytes are not the %d of package tar", len(packed), want.Len())
	}
	if !slices.IsSorted(names) || len(names) != files {
		t.Errorf("%d files, sorted %v", len(names), slices.IsSorted(names))
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// errorOrCancellationEndsIt ends archives at several writes.
func errorOrCancellationEndsIt(t *testing.T, opened *tree.Tree) {
	contents := archive.New(opened, archive.Options{})
	stopped := errors.New("stopped")
	for _, f := range []archive.Format{archive.TarZst, archive.TarGz} {
		for at := 1; at < 10; at += 3 {
			writes := 0
			failing := writerFunc(func(p []byte) (int, error) {
				if writes++; writes == at {
					return 0, io.ErrClosedPipe
				}
				return len(p), nil
			})
			if err := contents.Write(t.Context(), failing, f); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s, write %d fails: %v", f, at, err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			writes = 0
			cancelled := writerFunc(func(p []byte) (int, error) {
				if writes++; writes == at {
					cancel(stopped)
				}
				return len(p), nil
			})
			if err := contents.Write(ctx, cancelled, f); !errors.Is(err, stopped) {
				t.Errorf("%s, cancelled: %v", f, err)
			}
			cancel(nil)
		}
	}
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
