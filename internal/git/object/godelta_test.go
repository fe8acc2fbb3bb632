package object

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// TestDeltasOfGoGit applies the deltas that packfile.DiffDelta makes, as serve sends them: of small bases, of runs of
// exactly the longest copy, and of random edits.
func TestDeltasOfGoGit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n, letters int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'a' + byte(random.IntN(letters))
		}
		return b
	}
	pairs := [][2][]byte{{nil, []byte("new")}, {[]byte("short"), []byte("shorter")}}
	for _, n := range []int{1<<16 - 1, 1 << 16, 1<<16 + 1, 1 << 18} {
		base := text(n, 20)
		pairs = append(pairs, [2][]byte{base, base}, [2][]byte{bytes.Repeat([]byte("x"), n), bytes.Repeat([]byte("x"), n+1)})
	}
	for range 100 {
		letters := []int{1, 2, 20}[random.IntN(3)]
		base := text(1+random.IntN(30_000), letters)
		at := random.IntN(len(base))
		pairs = append(pairs, [2][]byte{base, bytes.Join([][]byte{base[:at], text(random.IntN(300), letters), base[at:]}, nil)})
	}
	for _, pair := range pairs {
		p := newPatcher()
		from, to, err := p.begin(bytes.NewReader(packfile.DiffDelta(pair[0], pair[1])))
		if err != nil || from != int64(len(pair[0])) {
			t.Fatal(from, err)
		}
		var out bytes.Buffer
		if err := p.patch(&out, bytes.NewReader(pair[0]), from, to); err != nil || !bytes.Equal(out.Bytes(), pair[1]) {
			t.Fatalf("%d bytes on a base of %d: got %d, %v", len(pair[1]), len(pair[0]), out.Len(), err)
		}
	}
}
