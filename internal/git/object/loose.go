package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
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

// maxLooseHeader is the maximum length of the type and size of a loose object, in bytes.
const maxLooseHeader = 32

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
	header := make([]byte, 0, maxLooseHeader)
	for {
		b, err := in.ReadByte()
		if err != nil {
			return err
		}
		if b == 0 {
			break
		}
		if header = append(header, b); len(header) == maxLooseHeader {
			return errLoose
		}
	}
	kind, size, _ := strings.Cut(string(header), " ")
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
