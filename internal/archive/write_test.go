package archive_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lockstep/internal/archive"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestErrorOrCancellationEndsAnArchive ends archives at several writes.
func TestErrorOrCancellationEndsAnArchive(t *testing.T) {
	t.Parallel()
	w, edit := newWorld(t), every()
	noise := make([]byte, 2<<20) // many buffers of output
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	edit.Write["noise"] = string(noise)
	contents := archive.New(w.commit(edit), archive.Options{})
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
