package object

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
)

func TestKeptIsBoundedAndDropped(t *testing.T) { // not parallel: the bound is the process's
	before := keptSize.Load()
	content := bytes.Repeat([]byte("x"), LargeObject)
	k := NewKept()
	for i := range maxKept/LargeObject + 5 {
		content[0] = byte(i)
		h := testFormat.Hash(plumbing.BlobObject, content)
		k.add(h, content)
		k.add(h, content) // a pack may have an object twice
	}
	if kept := keptSize.Load(); kept > maxKept || kept-before < maxKept/2 {
		t.Errorf("kept %d bytes", kept)
	}
	content[0] = 0
	h := testFormat.Hash(plumbing.BlobObject, content)
	if got, ok := k.get(h); !ok || !bytes.Equal(got, content) {
		t.Error("the first blob is not kept as it was")
	}
	var out bytes.Buffer
	o := Open(t.TempDir())
	o.Keep(k)
	if err := o.CopyBlob(&out, h); err != nil || !bytes.Equal(out.Bytes(), content) {
		t.Errorf("CopyBlob: %v", err)
	}
	k.Drop()
	k.add(h, content)
	if _, ok := k.get(h); ok || keptSize.Load() != before {
		t.Errorf("after Drop: %v, %d bytes", ok, keptSize.Load())
	}
	(*Kept)(nil).Drop()
}

func TestKeptBlobsAreFew(t *testing.T) { // not parallel: the bound is the process's
	k := NewKept()
	defer k.Drop()
	for i := range maxKept/perKept + 5 {
		k.add(testFormat.Hash(plumbing.BlobObject, fmt.Append(nil, i)), nil)
	}
	if len(k.blobs) > maxKept/perKept {
		t.Errorf("kept %d empty blobs", len(k.blobs))
	}
}
