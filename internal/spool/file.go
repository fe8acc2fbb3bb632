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

// file is a bbolt database of items by ascending keys of 8 bytes. Who has it open has it locked. Nobody
// uses one from two goroutines at once.
type file struct {
	path    string
	db      *bolt.DB
	os      *os.File // db's, which it does not show
	items   int
	bytes   int64
	adopted bool // another process' once
	gone    bool // closed, or given up
}

var (
	bucket = []byte("items")

	errTaken   = errors.New("another process has the file")
	errDamaged = errors.New("damaged")
)

// noWait is long enough for one attempt at a lock, which is all that bbolt then makes.
const noWait = time.Millisecond

// openFile opens a file, made if need be. It fails with [errTaken] or [errDamaged] where that is why.
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
			err = f.guard(f.read)
		}
		switch {
		case errors.Is(err, bolterrors.ErrTimeout):
			return nil, errTaken
		case err != nil:
			_ = f.abandon()
			return nil, err
		case f.isThere():
			return f, nil
		}
		_ = f.close() // its last owner deleted it between our opening and our locking it
	}
}

// read counts what is in the file, all of which it thereby touches.
func (f *file) read() error {
	return f.db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		b.FillPercent = 1
		return b.ForEach(func(key, value []byte) error {
			if len(key) != 8 {
				return fmt.Errorf("%w: it has a key of %d bytes", errDamaged, len(key))
			}
			f.items++
			f.bytes += int64(len(value) + itemCost)
			return nil
		})
	})
}

// isThere reports whether the file is still what its path names.
func (f *file) isThere() bool {
	ours, err := f.os.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.path)
	return err == nil && os.SameFile(ours, named)
}

func (f *file) append(items [][]byte) error {
	err := f.guard(func() error {
		return f.db.Update(func(tx *bolt.Tx) error {
			for _, item := range items {
				if err := put(tx, item); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err == nil {
		f.items += len(items)
		f.bytes += costOf(items)
	}
	return err
}

// put adds an item behind all others.
func put(tx *bolt.Tx, item []byte) error {
	b := tx.Bucket(bucket)
	b.FillPercent = 1 // keys ascend: no page is ever inserted into
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
				// What bbolt gives out is its memory, for as long as the transaction lasts.
				items = append(items, Item{Data: append([]byte(nil), value...), key: binary.BigEndian.Uint64(key), file: f})
			}
			return nil
		})
	})
	return items, err
}

// settle drops items, or puts them behind all others.
func (f *file) settle(items []Item, back bool) error {
	err := f.guard(func() error {
		return f.db.Update(func(tx *bolt.Tx) error {
			for _, item := range items {
				if err := tx.Bucket(bucket).Delete(binary.BigEndian.AppendUint64(nil, item.key)); err != nil {
					return err
				}
				if back {
					if err := put(tx, item.Data); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	if err == nil && !back {
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

// remove deletes the file and closes it, in that order: nobody else has had it by then.
func (f *file) remove() {
	_ = os.Remove(f.path)
	_ = f.close()
}

// abandon gives up a file that is damaged, of which bbolt may hold locks that it cannot get rid of.
// Closing it under bbolt lets go of the lock that others see.
func (f *file) abandon() error {
	f.gone = true
	if f.os == nil {
		return nil
	}
	if err := f.os.Close(); !errors.Is(err, os.ErrClosed) { // bbolt closes what it could not open
		return err
	}
	return nil
}

// guard runs fn and returns [errDamaged] for what bbolt has to say, by an error or by panicking, of a
// file that is none of its own; reading one that was cut short is a fault.
func (f *file) guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if said := recover(); said != nil {
			err = fmt.Errorf("%w: %v", errDamaged, said)
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
