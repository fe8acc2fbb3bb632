package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

const (
	readers   = 2
	chunkSize = 128 << 10 // a block of the encoder
	ahead     = 2         // chunks of a reader that are being filled or compressed
	maxSmall  = chunkSize / 2
)

// batch is a run of files whose entries fill a chunk, or one large file. One reader makes the entries of all.
type batch struct {
	files  []checkout.TreeFile
	size   int        // of the entries, roughly
	chunks chan chunk // of entries, in order; closed after the last
	err    error      // set before chunks is closed
}

// chunk is a part of an archive.
type chunk struct {
	buffer *buffer
	bytes  []byte          // in buffer
	room   <-chan struct{} // receive from it after use
}

// buffer has a byte more than a chunk, so that a read shows the end of the file.
type buffer [chunkSize + 1]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// writeEntries writes the entries of all files. It reads files while others are compressed. Its goroutines have ended when it returns.
func (c *Contents) writeEntries(ctx context.Context, w io.Writer) (err error) {
	ctx, stop := context.WithCancelCause(ctx)
	g, ctx := errgroup.WithContext(ctx)
	defer func() { // also if w panics
		stop(err)
		if failed := g.Wait(); err == nil {
			err = failed
		}
	}()
	unread, ordered := make(chan *batch), make(chan *batch, readers*ahead)
	g.Go(func() (err error) {
		defer close(unread)
		defer close(ordered)
		defer recovered(&err)
		return c.list(ctx, unread, ordered)
	})
	for range readers {
		g.Go(func() (err error) {
			defer recovered(&err)
			return c.read(ctx, unread)
		})
	}
	return writeBatches(ctx, ordered, w)
}

// recovered makes a panic an error of the archive, so that it does not end the process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("make an archive: panic: %v\n%s", p, debug.Stack())
	}
}

func writeBatches(ctx context.Context, ordered <-chan *batch, w io.Writer) error {
	for {
		b, err := receive(ctx, ordered)
		if b == nil || err != nil {
			return err
		}
		if err := b.writeTo(ctx, w); err != nil {
			return err
		}
	}
}

func (b *batch) writeTo(ctx context.Context, w io.Writer) error {
	for {
		part, err := receive(ctx, b.chunks)
		if err != nil {
			return err
		}
		if part.buffer == nil {
			return b.err
		}
		if _, err := w.Write(part.bytes); err != nil {
			return err
		}
		buffers.Put(part.buffer)
		<-part.room
	}
}

// receive returns the next value, or the zero value after the last.
func receive[T any](ctx context.Context, from <-chan T) (next T, err error) {
	select {
	case next = <-from:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return next, err
}

// list sends all files in batches, to readers and in order to the writer.
func (c *Contents) list(ctx context.Context, unread, ordered chan<- *batch) error {
	next := &batch{}
	send := func() error {
		next.chunks = make(chan chunk, ahead)
		for _, to := range []chan<- *batch{ordered, unread} {
			select {
			case to <- next:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		next = &batch{files: make([]checkout.TreeFile, 0, len(next.files))}
		return nil
	}
	err := c.Each(ctx, func(f checkout.TreeFile) error {
		size := 2*blockSize + len(f.Path) + int(f.Size)
		if len(next.files) > 0 && next.size+size > chunkSize {
			if err := send(); err != nil {
				return err
			}
		}
		next.files, next.size = append(next.files, f), next.size+size
		return nil
	})
	if err == nil && len(next.files) > 0 {
		err = send()
	}
	return err
}

// read makes the entries of batches, one after another.
func (c *Contents) read(ctx context.Context, unread <-chan *batch) error {
	at, err := disk.NewWalker(c.tree.Dir())
	if err != nil {
		return fmt.Errorf("open the tree: %w", err)
	}
	defer at.Close()
	r := &reader{ctx: ctx, at: at, room: make(chan struct{}, ahead)}
	for b := range unread {
		r.batch = b
		for _, f := range b.files {
			if b.err = r.add(f); b.err != nil {
				break
			}
		}
		r.flush()
		close(b.chunks)
		if b.err != nil {
			return b.err
		}
	}
	return nil
}

// reader makes entries of files.
type reader struct {
	ctx    context.Context
	at     *disk.Walker
	room   chan struct{} // has an item for each chunk in use
	batch  *batch
	buffer *buffer // nil if there is no chunk to fill
	bytes  []byte  // of buffer, filled so far
	head   []byte  // the last header
}

// add adds the entry of a file, link or submodule.
func (r *reader) add(f checkout.TreeFile) error {
	if f.Mode == ModeSubmodule {
		return r.addHeader(submodule, f.Path+"/", "", 0, 0)
	}
	folder, err := r.at.Enter(disk.Parent(f.Path), disk.Dir.Open)
	if err != nil {
		return altered(f.Path, err)
	}
	kind := plainFile
	switch f.Mode {
	case ModeLink:
		target, err := folder.Readlink(path.Base(f.Path))
		if err != nil {
			return altered(f.Path, err)
		}
		return r.addHeader(link, f.Path, target, 0, 0)
	case ModeExecutable:
		kind = executable
	}
	if f.Size > 0 && f.Size <= maxSmall {
		if done, err := r.addSmall(kind, folder, f); done || err != nil {
			return err
		}
	}
	return r.addLarge(kind, folder, f)
}

// addSmall adds a file with few system calls: if a read of one byte more gives as many as the file was built with, it is complete. It adds
// nothing if there are more: a file of 4 GiB or more has a size that is not known before it is open.
func (r *reader) addSmall(kind *template, folder disk.Dir, f checkout.TreeFile) (done bool, err error) {
	size := int(f.Size)
	if err := r.addHeader(kind, f.Path, "", int64(size), size+blockSize); err != nil {
		return false, err
	}
	begin := len(r.bytes)
	n, err := folder.Read(path.Base(f.Path), r.buffer[begin:begin+size+1])
	if err != nil || n < size {
		return false, altered(f.Path, err)
	}
	if n > size {
		r.bytes = r.bytes[:begin-len(r.head)]
		return false, nil
	}
	r.bytes = r.bytes[:begin+size]
	r.pad()
	return true, nil
}

// addLarge adds a file of any size.
func (r *reader) addLarge(kind *template, folder disk.Dir, f checkout.TreeFile) error {
	file, size, err := openBuilt(folder, f)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := r.addHeader(kind, f.Path, "", size, 0); err != nil {
		return err
	}
	for left := size; left > 0; {
		if err := r.reserve(1); err != nil {
			return err
		}
		free := r.buffer[len(r.bytes):chunkSize]
		n, err := file.Read(free[:min(left, int64(len(free)))])
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err != nil || n == 0 {
			return altered(f.Path, err)
		}
		r.bytes = r.bytes[:len(r.bytes)+n]
		left -= int64(n)
	}
	r.pad()
	return nil
}

// addHeader adds a header, in a chunk with room for some bytes after it.
func (r *reader) addHeader(kind *template, name, target string, size int64, room int) error {
	r.head = kind.appendTo(r.head[:0], name, target, size)
	if err := r.reserve(len(r.head) + room); err != nil {
		return err
	}
	r.bytes = append(r.bytes, r.head...)
	return nil
}

// pad fills the block of the end of a file: chunks consist of whole blocks.
func (r *reader) pad() {
	end := len(r.bytes)
	r.bytes = r.bytes[:(end+blockSize-1)/blockSize*blockSize]
	clear(r.bytes[end:])
}

// reserve makes room in a chunk for some bytes, at most chunkSize.
func (r *reader) reserve(bytes int) error {
	if r.buffer != nil && len(r.bytes)+bytes <= chunkSize {
		return nil
	}
	r.flush()
	select {
	case r.room <- struct{}{}:
		r.buffer = buffers.Get().(*buffer)
		r.bytes = r.buffer[:0:chunkSize]
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// flush passes the chunk on.
func (r *reader) flush() {
	if r.buffer != nil {
		r.batch.chunks <- chunk{r.buffer, r.bytes, r.room} // does not wait: it has room for as many chunks as a reader
		r.buffer = nil
	}
}
