package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"lockstep/internal/testenv"
)

// readAll reads a spool to its end, in parts of random length.
func readAll(t *testing.T, r *spoolReader, random *rand.Rand) []byte {
	var all bytes.Buffer
	for {
		b := make([]byte, 1+random.IntN(100<<10))
		n, err := r.read(t.Context(), b, time.Minute)
		all.Write(b[:n])
		if errors.Is(err, io.EOF) {
			return all.Bytes()
		}
		if err != nil {
			t.Errorf("read: %v", err)
			return nil
		}
	}
}

// TestSpool passes more than the file holds to several readers, one of which leaves.
func TestSpool(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 3<<20)
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	dir := t.TempDir()
	s := newSpool(dir, 100<<10)
	var readers sync.WaitGroup
	for i := range 4 {
		r := s.join()
		random := rand.New(rand.NewPCG(3, uint64(i)))
		readers.Go(func() {
			defer s.leave(r)
			if i == 0 {
				_, _ = r.read(t.Context(), make([]byte, 1000), time.Minute)
				return
			}
			if !bytes.Equal(readAll(t, r, random), content) {
				t.Errorf("reader %d got something else", i)
			}
		})
	}
	for rest := content; len(rest) > 0; {
		n := testenv.Must(s.write(t.Context(), rest[:min(len(rest), 1+random.IntN(300<<10))]))(t)
		rest = rest[n:]
	}
	if s.join() != nil {
		t.Error("a reader joined a spool whose start is gone")
	}
	if info := testenv.Must(s.file.Stat())(t); info.Size() > 100<<10 {
		t.Errorf("the file has %d bytes", info.Size())
	}
	s.finish(nil)
	readers.Wait()
	s.close()
	if files := testenv.Must(os.ReadDir(dir))(t); len(files) > 0 {
		t.Errorf("%s is left behind", files[0].Name())
	}
}

// TestSpoolErrors checks what a writer and readers get when one of them gives up.
func TestSpoolErrors(t *testing.T) {
	s := newSpool(t.TempDir(), 1<<10)
	r := s.join()
	ctx, cancel := context.WithCancelCause(t.Context())
	wrote := make(chan error)
	go func() {
		_, err := s.write(ctx, make([]byte, spoolHead+10<<10))
		s.finish(err)
		wrote <- err
	}()
	testenv.Must(r.read(t.Context(), make([]byte, 10), time.Minute))(t)
	stop := errors.New("stop")
	cancel(stop)
	if err := <-wrote; !errors.Is(err, stop) {
		t.Errorf("the writer got %v", err)
	}
	var err error
	for err == nil {
		_, err = r.read(t.Context(), make([]byte, 64<<10), time.Minute)
	}
	if !errors.Is(err, stop) {
		t.Errorf("the reader got %v", err)
	}
	if s.join() != nil {
		t.Error("a reader joined a spool that failed")
	}
	s.leave(r)
	s.close()
	idle := newSpool(t.TempDir(), 1<<10).join()
	if _, err := idle.read(t.Context(), make([]byte, 1), time.Millisecond); !errors.Is(err, errIdle) {
		t.Errorf("an idle reader got %v", err)
	}
}

// TestSpoolTotal passes more data through spools than their files may hold together: each becomes a ring of its current size.
func TestSpoolTotal(t *testing.T) {
	content := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	space := newQuota(5<<20, 5<<20)
	var spools sync.WaitGroup
	for i := range 3 {
		s := newSpool(t.TempDir(), 100<<20)
		s.space = space
		r, random := s.join(), rand.New(rand.NewPCG(4, uint64(i)))
		spools.Go(func() {
			if !bytes.Equal(readAll(t, r, random), content) {
				t.Errorf("reader %d got something else", i)
			}
			s.leave(r)
		})
		spools.Go(func() {
			_, err := s.write(t.Context(), content)
			s.finish(err)
		})
		t.Cleanup(s.close)
	}
	spools.Wait()
	if space.used < 4<<20 {
		t.Errorf("%d bytes are used", space.used)
	}
}
