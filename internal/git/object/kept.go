package object

import (
	"slices"
	"sync"
)

// Kept holds blobs that a first fetch has received, so that building the tree needs not inflate and hash them again. A nil
// Kept holds none. It is safe for concurrent use.
type Kept struct {
	mu    sync.Mutex
	room  int64 // bytes
	blobs map[ID][]byte
}

// keptBytes bounds the contents held per fetch.
const keptBytes = 16 << 20

// NewKept returns an empty Kept.
func NewKept() *Kept { return &Kept{room: keptBytes, blobs: map[ID][]byte{}} }

// add keeps a copy of a blob while there is room.
func (k *Kept) add(h ID, content []byte) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if int64(len(content)) > k.room {
		return
	}
	k.room -= int64(len(content))
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
