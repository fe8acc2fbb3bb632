package object

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

// Pack is one pack of a store, to check it. It is not safe for concurrent use. Callers defer [RecoverCorrupt].
type Pack struct {
	pack
	reader *packReader
}

// OpenPack opens the pack at path, and its index.
func OpenPack(path string) (*Pack, error) {
	p, err := openPack(path)
	if err != nil {
		return nil, err
	}
	return &Pack{*p, newPackReader()}, nil
}

// Close closes the files.
func (p *Pack) Close() { p.close() }

// IDs returns the IDs of the objects in the index, in the order of the pack.
func (p *Pack) IDs() ([]ID, error) {
	order, err := p.index.inOrder()
	if err != nil {
		return nil, err
	}
	ids := make([]ID, len(order))
	for n, i := range order {
		if ids[n], err = p.index.id(int64(i)); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

var (
	errChecksum    = errors.New("does not match its checksum")
	errIndexSum    = errors.New("its index does not match its checksum")
	errOtherIndex  = errors.New("its index belongs to another pack")
	errTooShort    = errors.New("too short for a pack")
	errWrongObject = errors.New("hash does not match its name")
)

// CheckSums verifies the checksums of the pack and of its index, and that they belong together. It returns
// the size of the pack.
func (p *Pack) CheckSums(ctx context.Context) (size int64, err error) {
	info, err := p.file.Stat()
	if err != nil {
		return 0, err
	}
	sum, err := p.index.format.checkSum(ctx, p.file, info.Size())
	if err != nil {
		return info.Size(), err
	}
	if _, err := p.index.format.checkSum(ctx, p.index.file, p.index.size); err != nil {
		return info.Size(), errors.Join(errIndexSum, err)
	}
	of, err := p.index.read(p.index.size-2*p.index.hashSize, p.index.hashSize)
	if err != nil {
		return info.Size(), err
	}
	if !bytes.Equal(of, sum) {
		return info.Size(), errOtherIndex
	}
	return info.Size(), nil
}

// checkSum verifies and returns the checksum at the end of a file.
func (f Format) checkSum(ctx context.Context, file *os.File, size int64) (sum []byte, err error) {
	end := size - int64(f.Size())
	if end < 0 {
		return nil, errTooShort
	}
	hasher := f.NewSum()
	if _, err := io.Copy(CancelWriter{ctx, hasher}, io.NewSectionReader(file, 0, end)); err != nil {
		return nil, err
	}
	sum = make([]byte, f.Size())
	if _, err := file.ReadAt(sum, end); err != nil {
		return nil, err
	}
	if !bytes.Equal(hasher.Sum(nil), sum) {
		return nil, errChecksum
	}
	return sum, nil
}

// Check reads an object and compares its hash with its name.
func (p *Pack) Check(h ID) error {
	offset, err := p.index.findOffset(h)
	if err != nil {
		return err
	}
	obj, err := p.reader.get(&p.pack, offset)
	if err != nil {
		return err
	}
	reader, err := obj.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	hasher := h.Format().NewHasher(obj.Kind, obj.Size)
	if _, err := io.Copy(hasher, reader); err != nil {
		return err
	}
	if hasher.ID() != h {
		return errWrongObject
	}
	return nil
}
