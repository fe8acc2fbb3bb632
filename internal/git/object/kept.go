package object

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Kept holds blobs that a first fetch has received, so that building the tree needs not inflate and hash them
// again. A nil Kept holds none. It is safe for concurrent use.
type Kept struct {
	mu    sync.Mutex
	size  int64
	blobs map[ID][]byte // nil once dropped
}

// maxKept bounds the memory of the blobs held by all fetches of the process, in bytes.
const maxKept = 64 << 20

// perKept is the approximate overhead of a blob, in addition to its content.
const perKept = 128

// keptSize is the memory of the blobs held by all fetches.
var keptSize atomic.Int64

// NewKept returns an empty Kept. The caller drops it.
func NewKept() *Kept { return &Kept{blobs: map[ID][]byte{}} }

// add keeps a copy of a blob while there is room.
func (k *Kept) add(h ID, content []byte) {
	if k == nil {
		return
	}
	size := int64(len(content)) + perKept
	if keptSize.Add(size) > maxKept {
		keptSize.Add(-size)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.blobs[h]; known || k.blobs == nil {
		keptSize.Add(-size)
		return
	}
	k.size += size
	k.blobs[h] = slices.Clone(content)
}

// get returns a blob that is kept.
func (k *Kept) get(h ID) (content []byte, ok bool) {
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	content, ok = k.blobs[h]
	return content, ok
}

// Drop forgets all blobs.
func (k *Kept) Drop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	keptSize.Add(-k.size)
	k.size, k.blobs = 0, nil
}
