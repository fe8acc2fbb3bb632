package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// file is a locked bbolt database of items with ascending keys of 8 bytes. It is not safe for concurrent use.
type file struct {
	path    string
	db      *bolt.DB
	os      *os.File // the file of db, which does not export it
	items   int
	bytes   int64
	adopted bool // left by another process
	gone    bool // closed or abandoned
}

var (
	bucket = []byte("items")

	errLocked  = errors.New("in use by another process")
	errDamaged = errors.New("damaged")
)

// noWait makes bbolt try once to lock the file.
const noWait = time.Millisecond

// openFile opens a file, creating it if necessary. It returns [errLocked] or [errDamaged] if the file is in use or damaged.
func openFile(path string) (*file, error) {
	for {
		f := &file{path: path}
		options := *bolt.DefaultOptions
		options.Timeout = noWait
		options.FreelistType = bolt.FreelistMapType
		options.OpenFile = func(path string, flag int, mode os.FileMode) (opened *os.File, err error) {
			f.os, err = os.OpenFile(path, flag, mode)
			return f.os, err
		}
		err := f.guard(func() (err error) {
			f.db, err = bolt.Open(path, 0o600, &options)
			return err
		})
		if err == nil {
			err = f.update(f.read)
		}
		switch {
		case errors.Is(err, bolterrors.ErrTimeout):
			return nil, errLocked
		case err != nil:
			_ = f.abandon()
			return nil, err
		case f.isThere():
			return f, nil
		}
		_ = f.close() // its previous owner deleted it before we locked it
	}
}

// read counts the items. It reads the whole file, which detects damage.
func (f *file) read(tx *bolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	b.FillPercent = 1
	return b.ForEach(func(key, value []byte) error {
		if len(key) != 8 {
			return fmt.Errorf("%w: a key has %d bytes", errDamaged, len(key))
		}
		f.items++
		f.bytes += int64(len(value) + itemCost)
		return nil
	})
}

func (f *file) isThere() bool {
	ours, err := f.os.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.path)
	return err == nil && os.SameFile(ours, named)
}

func (f *file) update(fn func(tx *bolt.Tx) error) error {
	return f.guard(func() error { return f.db.Update(fn) })
}

func (f *file) append(items [][]byte) error {
	err := f.update(func(tx *bolt.Tx) error {
		for _, item := range items {
			if err := put(tx, item); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		f.items += len(items)
		f.bytes += costOf(items)
	}
	return err
}

func put(tx *bolt.Tx, item []byte) error {
	b := tx.Bucket(bucket)
	b.FillPercent = 1 // keys ascend, so full pages never split
	key, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(binary.BigEndian.AppendUint64(nil, key), item)
}

func (f *file) peek(most int) (items []Item, err error) {
	err = f.guard(func() error {
		return f.db.View(func(tx *bolt.Tx) error {
			cursor := tx.Bucket(bucket).Cursor()
			for key, value := cursor.First(); key != nil && len(items) < most; key, value = cursor.Next() {
				// bbolt's slices are only valid during the transaction.
				items = append(items, Item{Data: append([]byte(nil), value...), key: binary.BigEndian.Uint64(key), file: f})
			}
			return nil
		})
	})
	return items, err
}

// settle removes items, or moves them to the end.
func (f *file) settle(items []Item, requeue bool) error {
	err := f.update(func(tx *bolt.Tx) error {
		for _, item := range items {
			err := tx.Bucket(bucket).Delete(binary.BigEndian.AppendUint64(nil, item.key))
			if err == nil && requeue {
				err = put(tx, item.Data)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && !requeue {
		f.items -= len(items)
		for _, item := range items {
			f.bytes -= int64(len(item.Data) + itemCost)
		}
	}
	return err
}

func (f *file) close() error {
	f.gone = true
	return f.db.Close()
}

// remove deletes and closes the file. It deletes the file first, while it is still locked.
func (f *file) remove() {
	_ = os.Remove(f.path)
	_ = f.close()
}

// abandon closes a damaged file. bbolt may hold internal locks that it cannot release, so abandon closes the file
// descriptor directly, which releases the file lock.
func (f *file) abandon() error {
	f.gone = true
	if f.os == nil {
		return nil
	}
	if err := f.os.Close(); !errors.Is(err, os.ErrClosed) { // bbolt closes a file that it could not open
		return err
	}
	return nil
}

// guard runs fn. It returns [errDamaged] if an error or panic of bbolt indicates that the file is damaged. Reading a
// truncated file causes a memory fault.
func (f *file) guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errDamaged, cause)
		}
	}()
	err = fn()
	for _, damage := range []error{
		bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch, bolterrors.ErrInvalidMapping,
		bolterrors.ErrIncompatibleValue, bolterrors.ErrBucketNotFound,
	} {
		if errors.Is(err, damage) {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
	}
	return err
}
