package object

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestDelta applies the deltas between a text and edited versions of it, and of texts that repeat.
func TestDelta(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n, letters int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'a' + byte(random.IntN(letters))
		}
		return b
	}
	for range 300 {
		letters := []int{1, 2, 20}[random.IntN(3)]
		base := text(random.IntN(30_000), letters)
		target := bytes.Clone(base)
		for range random.IntN(6) {
			at := random.IntN(len(target) + 1)
			end := min(len(target), at+random.IntN(400))
			target = bytes.Join([][]byte{target[:at], text(random.IntN(300), letters), target[end:], base[:min(len(base), random.IntN(2000))]}, nil)
		}
		delta, ok := NewDeltaIndex(base).Delta(target, len(target)+len(target)/maxInsert+30)
		if !ok {
			t.Fatalf("no delta of %d and %d bytes", len(base), len(target))
		}
		if got := applied(t, base, delta); !bytes.Equal(got, target) {
			t.Fatalf("%d bytes instead of %d", len(got), len(target))
		}
		if _, ok := NewDeltaIndex(base).Delta(target, len(delta)-1); ok {
			t.Fatal("longer than the limit")
		}
	}
	base := text(1<<20, 20)
	target := append(append(bytes.Clone(base[:1<<19]), "edited"...), base[1<<19:]...)
	if delta, ok := NewDeltaIndex(base).Delta(target, 100); !ok || !bytes.Equal(applied(t, base, delta), target) {
		t.Errorf("%d bytes for a small edit", len(delta))
	}
}

func applied(t *testing.T, base, delta []byte) []byte {
	t.Helper()
	p := newPatcher()
	from, to, err := p.begin(bytes.NewReader(delta))
	if err != nil || from != int64(len(base)) {
		t.Fatal(from, err)
	}
	var out bytes.Buffer
	if err := p.patch(&out, bytes.NewReader(base), from, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func FuzzDelta(f *testing.F) {
	f.Add([]byte("a base that is longer than one block of sixteen"), []byte("and a base that is longer than one block"))
	f.Fuzz(func(t *testing.T, base, target []byte) {
		delta, ok := NewDeltaIndex(base).Delta(target, 2*len(target)+30)
		if !ok {
			t.Fatal("no delta")
		}
		if !bytes.Equal(applied(t, base, delta), target) {
			t.Fatal("other content")
		}
	})
}
