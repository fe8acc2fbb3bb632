package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/disk"
)

// readLoose reads a loose object. For a large object it reads only the header.
func readLoose(path string) (*Object, error) {
	reader, err := openLoose(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	obj := &Object{Kind: reader.kind, Size: reader.size}
	if obj.Size > LargeObject {
		obj.open = func() (io.ReadCloser, error) { return openLoose(path) }
		return obj, nil
	}
	content := bytes.NewBuffer(make([]byte, 0, obj.Size+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(reader, obj.Size+1)); err != nil {
		return nil, fmt.Errorf("loose object: %w", err)
	}
	obj.content = content.Bytes()
	return obj, nil
}

// looseReader reads the content of a loose object.
type looseReader struct {
	io.Reader
	file     *os.File
	inflated io.ReadCloser
	kind     plumbing.ObjectType
	size     int64
}

var inflaters sync.Pool // of zlib.Resetter

func openLoose(path string) (*looseReader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &looseReader{file: file}
	if err := r.readHeader(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("loose object: %w", noEOF(err))
	}
	return r, nil
}

func (r *looseReader) readHeader() error {
	packed := bufio.NewReader(r.file)
	var err error
	if pooled, ok := inflaters.Get().(io.ReadCloser); ok {
		err = pooled.(zlib.Resetter).Reset(packed, nil)
		r.inflated = pooled
	} else {
		r.inflated, err = zlib.NewReader(packed)
	}
	if err != nil {
		return err
	}
	in := bufio.NewReader(r.inflated)
	header, err := in.ReadSlice(0) // at most its buffer
	if err != nil {
		return err
	}
	kind, size, _ := strings.Cut(string(header[:len(header)-1]), " ")
	if r.kind, err = plumbing.ParseObjectType(kind); err != nil || r.kind.IsDelta() {
		return errLoose
	}
	if r.size, err = strconv.ParseInt(size, 10, 64); err != nil || r.size < 0 {
		return errLoose
	}
	r.Reader = in
	return nil
}

var errLoose = errors.New("not a type and a size")

func (r *looseReader) Close() error {
	inflaters.Put(r.inflated)
	return r.file.Close()
}

// tempObject is the name prefix of temporary and incomplete files in a quarantine.
const tempObject = "tmp_"

// looseFile writes a loose object, under a temporary name until commit.
type looseFile struct {
	r    *receiver
	file *os.File
	out  *bufio.Writer
	zlib *zlib.Writer
	done bool // renamed to its final name
}

// writeLoose writes a loose object.
func (r *receiver) writeLoose(h ID, kind plumbing.ObjectType, size int64, content io.Reader) error {
	file, err := r.createLoose(kind, size)
	if err != nil {
		return err
	}
	defer file.discard()
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.commit(h)
}

func (r *receiver) createLoose(kind plumbing.ObjectType, size int64) (*looseFile, error) {
	path := filepath.Join(r.q.Dir, fmt.Sprintf("%sobject-%d", tempObject, r.files.Add(1)))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, looseError(err)
	}
	out := bufio.NewWriterSize(file, 8<<10)
	f := &looseFile{r: r, file: file, out: out, zlib: r.deflate(out)}
	if _, err := fmt.Fprintf(f, "%s %d\x00", kind, size); err != nil {
		f.discard()
		return nil, err
	}
	return f, nil
}

func looseError(err error) error { return disk.Error("write a fetched object", err) }

// Write appends to the object's content.
func (f *looseFile) Write(b []byte) (int, error) {
	n, err := CancelWriter{f.r.ctx, f.zlib}.Write(b)
	if f.r.ctx.Err() != nil {
		return n, err
	}
	return n, looseError(err)
}

// commit renames the file to its final name. It does not sync it: Release syncs all files at once.
func (f *looseFile) commit(h ID) error {
	err := errors.Join(f.zlib.Close(), f.out.Flush())
	if err != nil {
		return looseError(err)
	}
	name := h.String()
	group := filepath.Join(f.r.q.Dir, "objects", name[:2])
	path := filepath.Join(group, name[2:])
	err = os.Rename(f.file.Name(), path)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(group, 0o755); err != nil {
			return looseError(err)
		}
		err = os.Rename(f.file.Name(), path)
	}
	f.done = err == nil
	return looseError(err)
}

// discard closes the file, and removes it unless it was committed.
func (f *looseFile) discard() {
	f.r.deflaters.Put(f.zlib)
	_ = f.file.Close()
	if !f.done {
		_ = os.Remove(f.file.Name())
	}
}

// deflate returns a compressor to out.
func (r *receiver) deflate(out io.Writer) *zlib.Writer {
	if z, ok := r.deflaters.Get().(*zlib.Writer); ok {
		z.Reset(out)
		return z
	}
	return zlib.NewWriter(out)
}
