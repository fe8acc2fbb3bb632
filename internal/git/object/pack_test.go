package object

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// packDefaults returns the default limits.
func packDefaults(t testing.TB) Limits {
	t.Helper()
	return Limits{MaxFileBytes: 512 << 20, MaxInflatedBytes: 8 << 30, MaxTreeFiles: 1_000_000, FetchTimeout: 30 * time.Minute}
}

// received writes a pack to a new quarantine, as a fetch does.
func received(t testing.TB, pack []byte) Quarantine {
	t.Helper()
	q, err := OpenQuarantine(filepath.Join(t.TempDir(), "quarantine"))
	if err != nil {
		t.Fatal(err)
	}
	q.Format = testFormat
	if err := os.WriteFile(q.packPath(), pack, 0o644); err != nil {
		t.Fatal(err)
	}
	return q
}

// newStore creates an empty store.
func newStore(t testing.TB) string {
	t.Helper()
	s := filepath.Join(t.TempDir(), "store")
	if err := MakeBare(s, testFormat); err != nil {
		t.Fatal(err)
	}
	return s
}

// gitRepo is a repository written by git.
type gitRepo struct {
	dir      string
	t        testing.TB
	changing []string // the files that a push changes
}

const versions = 150

// newGitRepo creates a repository with many versions of a file, unusual objects and a large file that changes.
func newGitRepo(t testing.TB) gitRepo {
	t.Helper()
	h := gitRepo{t.TempDir(), t, []string{"lines", "large"}}
	h.git("", "init", "-q", "--bare", "-b", "main")
	random := rand.New(rand.NewPCG(1, 2))
	large := make([]byte, 3<<20)
	for i := range large {
		large[i] = byte(random.Uint32())
	}
	var script strings.Builder
	file := func(name, content string) {
		fmt.Fprintf(&script, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
	}
	var lines strings.Builder
	for v := range versions {
		fmt.Fprintf(&script, "commit refs/heads/main\nmark :%d\ncommitter A <a@b> %d +0000\ndata 1\nx\n", v+1, 1_700_000_000+v)
		if v == 0 {
			for i := range 200 {
				fmt.Fprintf(&lines, "line %d is %d\n", i, random.Uint64())
			}
			file("empty", "")
		}
		fmt.Fprintf(&lines, "version %d, %d\n", v, random.Uint64())
		file("lines", lines.String())
		file(fmt.Sprintf("dir%d/file%d", v%10, v), fmt.Sprintf("file %d\n", v))
		if v%50 == 0 {
			copy(large[v<<10:], fmt.Sprintf("changed by %d", v))
			file("large", string(large))
		}
	}
	script.WriteString("tag v1\nfrom :10\ntagger A <a@b> 1700000000 +0000\ndata 1\nx\ntag v2\nfrom :20\ntagger A <a@b> 1700000000 +0000\ndata 1\nx\n")
	h.git(script.String(), "fast-import", "--quiet")
	h.git("", "tag", "-a", "-m", "a tag of a tag", "v3", "v2")
	empty := h.git("", "hash-object", "-t", "tree", "-w", "--stdin")
	commit := h.git("", "-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m", "empty", empty)
	h.git("", "update-ref", "refs/heads/empty", commit)
	return h
}

func (h gitRepo) git(stdin string, args ...string) string {
	h.t.Helper()
	out, err := gitserver.Git(h.t.Context(), h.dir, stdin, append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// inventoryOf lists all objects below a bare repository: name, type, size.
func inventoryOf(t testing.TB, dir string) string {
	t.Helper()
	if err := MakeBare(dir, testFormat); err != nil {
		t.Fatal(err)
	}
	out, err := gitserver.Git(t.Context(), dir, "", "cat-file", "--batch-all-objects", "--batch-check")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mustMatchGit checks a repository and its packs with git.
func mustMatchGit(t testing.TB, dir string) {
	t.Helper()
	if err := MakeBare(dir, testFormat); err != nil {
		t.Fatal(err)
	}
	if out, err := gitserver.Git(t.Context(), dir, "", "fsck", "--full", "--strict", "--no-dangling"); err != nil {
		t.Error(err, out)
	}
	packs, _ := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
	for _, pack := range packs {
		if _, err := gitserver.Git(t.Context(), dir, "", "index-pack", "--verify", "--object-format="+testFormat.String(), pack); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, tempObject+"*")); len(left) > 0 {
		t.Errorf("temporary files: %v", left)
	}
}

// mustReadAll reads every object that git lists with a Store.
func mustReadAll(t testing.TB, dir string) {
	t.Helper()
	objects := Open(dir)
	defer objects.Close()
	for line := range strings.Lines(inventoryOf(t, dir)) {
		fields := strings.Fields(line)
		h := ParseID(fields[0])
		if fields[1] == "blob" {
			if err := objects.CopyBlob(io.Discard, h); err != nil {
				t.Error(err)
			}
			continue
		}
		if _, err := objects.read(h); err != nil {
			t.Error(err)
		}
	}
}

func TestIndexPacksMadeByGit(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	h := newGitRepo(t)
	for name, args := range map[string][]string{
		"OFS deltas, one long chain": {"--delta-base-offset", "--depth=4095"},
		"REF deltas, one long chain": {"--depth=4095"},
		"OFS deltas":                 {"--delta-base-offset", "--depth=10"},
		"no deltas":                  {"--depth=0"},
	} {
		t.Run(name, func(t *testing.T) {
			q := received(t, h.packed("", append(args, "--all")...))
			if err := q.Index(t.Context(), packDefaults(t), Progress{}); err != nil {
				t.Fatal(err)
			}
			mustMatchGit(t, q.Dir)
			mustReadAll(t, q.Dir)
			if got, want := inventoryOf(t, q.Dir), inventoryOf(t, h.dir); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			chains := chainsIn(t, q.Dir)
			if long := strings.Contains(name, "long"); long != (chains.longest > 100) {
				t.Errorf("the longest chain is %d", chains.longest)
			}
			if chains.largeDeltas > 0 {
				t.Errorf("%d large objects are deltas", chains.largeDeltas)
			}
			if _, err := os.Stat(q.packPath()); err == nil {
				t.Error("the fetched pack has not been removed")
			}
		})
	}
}

// packed returns a pack that git makes of the objects reachable from revs.
func (h gitRepo) packed(revs string, args ...string) []byte {
	h.t.Helper()
	base := filepath.Join(h.t.TempDir(), "p")
	args = append([]string{"pack-objects", "--revs", "-q", "--window=300", "--no-reuse-delta"}, args...)
	if strings.Contains(revs, "^") { // git writes a thin pack only to stdout
		pack := []byte(h.git(revs, append(args, "--thin", "--stdout")...))
		if end := len(pack) - packTrailer; !bytes.Equal(summed(pack[:end]), pack) {
			pack = append(pack, '\n') // trimmed by gitserver.Git
		}
		return pack
	}
	name := h.git(revs, append(args, base)...)
	pack, err := os.ReadFile(base + "-" + name + ".pack")
	if err != nil {
		h.t.Fatal(err)
	}
	return pack
}

type chains struct{ longest, largeDeltas int }

// chainsIn lists the deltas in the only pack of a repository with git.
func chainsIn(t testing.TB, dir string) (c chains) {
	t.Helper()
	if err := MakeBare(dir, testFormat); err != nil {
		t.Fatal(err)
	}
	packs, _ := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
	if len(packs) != 1 {
		t.Fatalf("packs: %v", packs)
	}
	out, err := gitserver.Git(t.Context(), dir, "", "verify-pack", "-v", packs[0])
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	for line := range strings.Lines(inventoryOf(t, dir)) {
		var name, kind string
		var size int
		if _, err := fmt.Sscan(line, &name, &kind, &size); err != nil {
			t.Fatal(err)
		}
		sizes[name] = size
	}
	for line := range strings.Lines(out) {
		var name, kind, base string
		var size, packed, offset, depth int
		if n, _ := fmt.Sscan(line, &name, &kind, &size, &packed, &offset, &depth, &base); n == 7 {
			c.longest = max(c.longest, depth)
			if size, ok := sizes[name]; !ok || size >= 1_000_000 {
				c.largeDeltas++
			}
		}
	}
	return c
}

// TestUnpackThinPacksMadeByGit unpacks a small and a large push into a store that has the previous commits.
func TestUnpackThinPacksMadeByGit(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	h := newGitRepo(t)
	before := h.git("", "rev-parse", "main")
	for name, files := range map[string]int{"a few objects": 5, "many": 1500} {
		t.Run(name, func(t *testing.T) {
			h := gitRepo{h.dir, t, h.changing}
			s := newStore(t)
			first := received(t, h.packed(before+"\n", "--delta-base-offset"))
			if err := first.Index(t.Context(), packDefaults(t), Progress{}); err != nil {
				t.Fatal(err)
			}
			if err := first.Release(s); err != nil {
				t.Fatal(err)
			}
			after := h.push(before, files)
			q := received(t, h.packed(after+"\n^"+before+"\n", "--delta-base-offset"))
			if err := q.Unpack(t.Context(), s, packDefaults(t), Progress{}); err != nil {
				t.Fatal(err)
			}
			packs, _ := filepath.Glob(filepath.Join(q.Dir, "objects", "pack", "*.pack"))
			if kept := len(packs) == 1; kept != (files > maxLoose) {
				t.Errorf("packs: %v", packs)
			}
			for _, pack := range packs { // git reads the pack without other objects
				if _, err := gitserver.Git(t.Context(), q.Dir, "", "index-pack", "--verify", "--object-format="+testFormat.String(), pack); err != nil {
					t.Error(err)
				}
				if c := chainsIn(t, q.Dir); c.largeDeltas > 0 || c.longest == 0 {
					t.Errorf("%+v", c)
				}
			}
			if err := q.Release(s); err != nil {
				t.Fatal(err)
			}
			mustMatchGit(t, s)
			mustReadAll(t, s)
			if _, err := gitserver.Git(t.Context(), s, "", "rev-list", "--objects", after); err != nil {
				t.Error(err)
			}
		})
	}
}

// push adds files and changes two, one of them large, on top of a commit.
func (h gitRepo) push(on string, files int) string {
	h.t.Helper()
	var script strings.Builder
	fmt.Fprintf(&script, "commit refs/heads/pushed%d\ncommitter A <a@b> 1800000000 +0000\ndata 1\nx\nfrom %s\n", files, on)
	for _, name := range h.changing {
		content := h.git("", "cat-file", "blob", on+":"+name) + "\nand one line more"
		fmt.Fprintf(&script, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
	}
	for i := range files {
		content := fmt.Sprintf("new file %d\n", i)
		fmt.Fprintf(&script, "M 100644 inline new/%d\ndata %d\n%s\n", i, len(content), content)
	}
	h.git(script.String(), "fast-import", "--quiet")
	return h.git("", "rev-parse", fmt.Sprintf("pushed%d", files))
}

// packMaker makes packs, also invalid ones that git would not write.
type packMaker struct {
	bytes.Buffer
	count uint32
}

// raw adds an object with the given header and compressed content.
func (m *packMaker) raw(head, packed []byte) int64 {
	if m.Len() == 0 {
		m.Write(packMagic)
		m.Write(make([]byte, 4))
	}
	offset := int64(m.Len())
	m.count++
	m.Write(head)
	m.Write(packed)
	return offset
}

func (m *packMaker) add(kind plumbing.ObjectType, content string) int64 {
	return m.raw(appendObjectHeader(nil, kind, int64(len(content))), deflated(content))
}

// testFormat is the object format of the packs of the tests. To run them with SHA-256, set GIT_DEFAULT_HASH=sha256.
var testFormat = func() Format {
	if os.Getenv("GIT_DEFAULT_HASH") == SHA256.String() {
		return SHA256
	}
	return SHA1
}()

// packTrailer is the length of the checksum of a pack, in bytes.
var packTrailer = testFormat.Size()

func (m *packMaker) blob(content string) int64 { return m.add(plumbing.BlobObject, content) }

func (m *packMaker) ofs(base int64, delta string) int64 {
	head := appendObjectHeader(nil, plumbing.OFSDeltaObject, int64(len(delta)))
	return m.raw(appendDistance(head, int64(max(m.Len(), packHeader))-base), deflated(delta))
}

func (m *packMaker) ref(base ID, delta string) int64 {
	head := appendObjectHeader(nil, plumbing.REFDeltaObject, int64(len(delta)))
	return m.raw(append(head, base.Bytes()...), deflated(delta))
}

// done returns the pack with its count and checksum.
func (m *packMaker) done() []byte {
	if m.Len() == 0 {
		m.Write(packMagic)
		m.Write(make([]byte, 4))
	}
	pack := m.Bytes()
	binary.BigEndian.PutUint32(pack[8:], m.count)
	return summed(pack)
}

func summed(pack []byte) []byte {
	sum := testFormat.NewSum()
	sum.Write(pack)
	return sum.Sum(pack[:len(pack):len(pack)])
}

var deflaters = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

func deflated(content string) []byte {
	var out bytes.Buffer
	z := deflaters.Get().(*zlib.Writer)
	defer deflaters.Put(z)
	z.Reset(&out)
	_, _ = io.WriteString(z, content)
	_ = z.Close()
	return out.Bytes()
}

func blobHash(content string) ID {
	return testFormat.Hash(plumbing.BlobObject, []byte(content))
}

// delta returns a delta: the two sizes and the instructions.
func delta(from, to int, steps ...string) string {
	return string(deltaSize(from)) + string(deltaSize(to)) + strings.Join(steps, "")
}

func deltaSize(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

func insertion(s string) string { return string(rune(len(s))) + s }

// copied returns a copy instruction with all its bytes.
func copied(offset, size int) string {
	return string([]byte{
		0xff, byte(offset), byte(offset >> 8), byte(offset >> 16), byte(offset >> 24),
		byte(size), byte(size >> 8), byte(size >> 16),
	})
}

// TestInvalidPacksAreCorrupt receives packs that git rejects, both as complete and as thin packs.
func TestInvalidPacksAreCorrupt(t *testing.T) {
	t.Parallel()
	kind, base := plumbing.BlobObject, "the base"
	head := func(size int64) []byte { return appendObjectHeader(nil, kind, size) }
	onBase := func(delta string) func(*packMaker) {
		return func(m *packMaker) { m.ofs(m.blob(base), delta) }
	}
	broken := deflated(strings.Repeat("x", 100))
	broken[len(broken)-1] ^= 1
	for name, make := range map[string]func(m *packMaker){
		"more than it declares": func(m *packMaker) { m.raw(head(7), deflated(base)) },
		"less than it declares": func(m *packMaker) { m.raw(head(9), deflated(base)) },
		"large and lying, more": func(m *packMaker) { m.raw(head(2<<20), deflated(strings.Repeat("x", 2<<20+1))) },
		"large and lying, less": func(m *packMaker) { m.raw(head(2<<20), deflated(strings.Repeat("x", 2<<20-1))) },
		"no zlib":               func(m *packMaker) { m.raw(head(8), []byte("no zlib at all")) },
		"broken zlib":           func(m *packMaker) { m.raw(head(100), broken) },
		"a delta less than declared": func(m *packMaker) {
			b := m.blob(base)
			m.raw(appendDistance(appendObjectHeader(nil, plumbing.OFSDeltaObject, 40), int64(m.Len())-b), deflated(delta(8, 8, copied(0, 8))))
		},
		"a delta more than declared": func(m *packMaker) {
			b := m.blob(base)
			m.raw(appendDistance(appendObjectHeader(nil, plumbing.OFSDeltaObject, 9), int64(m.Len())-b), deflated(delta(8, 8, copied(0, 8))))
		},
		"base before the pack":  func(m *packMaker) { m.blob(base); m.ofs(-100, delta(8, 8, copied(0, 8))) },
		"base within an object": func(m *packMaker) { m.ofs(m.blob(base)+1, delta(8, 8, copied(0, 8))) },
		"its own base":          func(m *packMaker) { m.blob(base); m.ofs(int64(m.Len()), delta(8, 8, copied(0, 8))) },
		"base out of range": func(m *packMaker) {
			m.raw(append(appendObjectHeader(nil, plumbing.OFSDeltaObject, 4), bytes.Repeat([]byte{255}, packTrailer)...), nil)
		},
		"base missing": func(m *packMaker) { m.ref(blobHash("nowhere"), delta(8, 8, copied(0, 8))) },
		"bases in a circle": func(m *packMaker) {
			m.ref(blobHash("b"), delta(1, 1, insertion("a")))
			m.ref(blobHash("a"), delta(1, 1, insertion("b")))
		},
		"base of another size":        onBase(delta(7, 8, copied(0, 7), insertion("x"))),
		"copy from beyond":            onBase(delta(8, 8, copied(1, 8))),
		"copy from far beyond":        onBase(delta(8, 8, copied(1<<32-1, 8))),
		"copy more than the result":   onBase(delta(8, 7, copied(0, 8))),
		"insert more than result":     onBase(delta(8, 2, insertion("xyz"))),
		"insert what is not there":    onBase(delta(8, 100, "\x64short")),
		"result too short":            onBase(delta(8, 9, copied(0, 8))),
		"instructions left":           onBase(delta(8, 8, copied(0, 8), insertion("x"))),
		"instruction zero":            onBase(delta(8, 8, "\x00", copied(0, 8))),
		"a delta of nothing":          onBase(""),
		"a delta of a size only":      onBase("\x08"),
		"an endless size":             onBase(strings.Repeat("\xff", 30)),
		"a copy cut short":            onBase(delta(8, 8, "\xff\x00")),
		"instructions in plenty":      onBase(delta(8, 1, strings.Repeat(copied(0, 8), 50))),
		"of type 0":                   func(m *packMaker) { m.raw([]byte{0x08}, deflated(base)) },
		"of type 5":                   func(m *packMaker) { m.raw([]byte{0x58}, deflated(base)) },
		"of endless size":             func(m *packMaker) { m.raw(bytes.Repeat([]byte{0xbf}, 30), nil) },
		"cut short":                   func(m *packMaker) { m.raw(head(100), deflated(strings.Repeat(base, 12))[:8]) },
		"one object claimed too few":  func(m *packMaker) { m.blob(base); m.blob("x"); m.count-- },
		"one object claimed too many": func(m *packMaker) { m.blob(strings.Repeat("long enough ", 9)); m.count++ },
		"more objects than bytes":     func(m *packMaker) { m.blob(base); m.count = 1 << 31 },
	} {
		t.Run(name, func(t *testing.T) {
			m := &packMaker{}
			make(m)
			mustBeRefused(t, m.done(), events.ClassCorrupt, events.Retryable)
		})
	}
	sound := func() []byte { m := &packMaker{}; m.blob(base); return m.done() }
	for name, pack := range map[string][]byte{
		"nothing":           {},
		"a head only":       sound()[:packHeader],
		"no whole checksum": sound()[:len(sound())-1],
		"a wrong checksum":  append(sound()[:len(sound())-1], 0),
		"more than a pack":  append(sound(), "more"...),
		"version 3":         bytes.Replace(sound(), []byte("\x00\x02"), []byte("\x00\x03"), 1),
		"not a pack":        []byte(strings.Repeat("<html>", 20)),
	} {
		t.Run(name, func(t *testing.T) { mustBeRefused(t, pack, events.ClassCorrupt, events.Retryable) })
	}
}

// mustBeRefused receives a pack as a complete and as a thin one, and expects the error.
func mustBeRefused(t *testing.T, pack []byte, class events.Class, disposition events.Disposition, change ...func(*Limits)) {
	t.Helper()
	cfg := packDefaults(t)
	for _, c := range change {
		c(&cfg)
	}
	testenv.MustFail(t, received(t, pack).Index(t.Context(), cfg, Progress{}), class, disposition)
	err := received(t, pack).Unpack(t.Context(), newStore(t), cfg, Progress{})
	testenv.MustFail(t, err, class, disposition)
	if strings.Contains(err.Error(), "panic") {
		t.Error(err)
	}
}

func TestPackLimits(t *testing.T) {
	mega := strings.Repeat("x", 1<<20)
	bomb := make([]byte, 1<<10)
	for name, tc := range map[string]struct {
		make   func(m *packMaker)
		change func(*Limits)
		says   string
	}{
		"a file": {
			func(m *packMaker) { m.blob(mega) },
			func(cfg *Limits) { cfg.MaxFileBytes = 1<<20 - 1 }, "max-file-bytes",
		},
		"a file, before it is inflated": {
			func(m *packMaker) { m.raw(appendObjectHeader(nil, plumbing.BlobObject, 1<<40), bomb) },
			func(*Limits) {}, "max-file-bytes",
		},
		"a delta's result": {
			func(m *packMaker) { m.ofs(m.blob(mega[:100]), delta(100, 101, copied(0, 100), insertion("x"))) },
			func(cfg *Limits) { cfg.MaxFileBytes = 100 }, "max-file-bytes",
		},
		"a delta's result, before it is made": {
			func(m *packMaker) { m.ofs(m.blob("x"), delta(1, 1<<40, copied(0, 1))) },
			func(*Limits) {}, "max-file-bytes",
		},
		"a commit": {
			func(m *packMaker) { m.raw(appendObjectHeader(nil, plumbing.CommitObject, maxMetadata+1), bomb) },
			func(*Limits) {}, "a commit of 67108865 bytes",
		},
		"a tree that is a delta": {
			func(m *packMaker) {
				m.ofs(m.add(plumbing.TreeObject, "x"), delta(1, maxMetadata+1, copied(0, 1)))
			},
			func(*Limits) {}, "a tree of 67108865 bytes",
		},
		"all objects": {
			func(m *packMaker) { m.blob(mega[:600]); m.blob(mega[:400] + "y") },
			func(cfg *Limits) { cfg.MaxInflatedBytes = 1000 }, "max-inflated-bytes",
		},
		"all objects, deltas as what they make": {
			func(m *packMaker) { m.ofs(m.blob(mega[:10]), delta(10, 1000, copied(0, 10))) },
			func(cfg *Limits) { cfg.MaxInflatedBytes = 1000 }, "max-inflated-bytes",
		},
		"the number of objects": {
			func(m *packMaker) { m.blob("a"); m.blob("b") },
			func(cfg *Limits) { cfg.MaxTreeFiles = 1 - otherObjects }, "max-tree-files",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &packMaker{}
			tc.make(m)
			cfg := packDefaults(t)
			tc.change(&cfg)
			pack := m.done()
			for _, err := range []error{
				received(t, pack).Index(t.Context(), cfg, Progress{}), received(t, pack).Unpack(t.Context(), newStore(t), cfg, Progress{}),
			} {
				testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
				if !strings.Contains(err.Error(), tc.says) {
					t.Error(err)
				}
			}
			pack[len(pack)-1] ^= 1 // with a wrong checksum, the declared sizes mean nothing
			testenv.MustFail(t, received(t, pack).Index(t.Context(), cfg, Progress{}), events.ClassCorrupt, events.Retryable)
		})
	}
}

// TestDeclaredObjectsAreNotAllocated declares as many objects as fit into a long pack, which is refused before
// memory is allocated for them.
func TestDeclaredObjectsAreNotAllocated(t *testing.T) {
	const size = 64 << 20
	q := received(t, binary.BigEndian.AppendUint32(bytes.Clone(packMagic), size/minPacked-10))
	testenv.Must(0, os.Truncate(q.packPath(), size))(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	testenv.MustFail(t, q.Index(t.Context(), packDefaults(t), Progress{}), events.ClassCorrupt, events.Retryable) // the checksum is wrong
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > size {
		t.Errorf("%d MiB allocated", took>>20)
	}
}

func TestFetchTimeout(t *testing.T) {
	m := &packMaker{}
	m.blob("a")
	cfg := packDefaults(t)
	cfg.FetchTimeout = -1
	err := received(t, m.done()).Index(t.Context(), cfg, Progress{})
	testenv.MustFail(t, err, events.ClassQuota, events.Retryable)
	if !strings.Contains(err.Error(), "fetch-timeout") {
		t.Error(err)
	}
}

// TestPackAtLimits receives a pack that is exactly as large as the limits.
func TestPackAtLimits(t *testing.T) {
	m := &packMaker{}
	m.ofs(m.blob("0123456789"), delta(10, 11, copied(0, 10), insertion("x")))
	cfg := packDefaults(t)
	cfg.MaxFileBytes, cfg.MaxInflatedBytes, cfg.MaxTreeFiles = 11, 21, 2-otherObjects
	if err := received(t, m.done()).Index(t.Context(), cfg, Progress{}); err != nil {
		t.Error(err)
	}
}

// TestFlippedBits flips a bit in every second byte of a small pack; in the long form, two bits in each byte.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	m := &packMaker{}
	m.add(plumbing.TreeObject, "")
	b := m.blob("the base")
	m.ofs(b, delta(8, 9, copied(0, 8), insertion("!")))
	m.ref(blobHash("the base!"), delta(9, 4, copied(4, 4)))
	pack := m.done()
	s := newStore(t)
	if err := received(t, pack).Index(t.Context(), packDefaults(t), Progress{}); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pack); i += testenv.Form(2, 1) {
		for _, bit := range []int{i % 8, (i + 4) % 8}[:testenv.Form(1, 2)] {
			pack[i] ^= 1 << bit
			testenv.MustFail(t, received(t, pack).Index(t.Context(), packDefaults(t), Progress{}), events.ClassCorrupt, events.Retryable)
			testenv.MustFail(t, received(t, pack).Unpack(t.Context(), s, packDefaults(t), Progress{}), events.ClassCorrupt, events.Retryable)
			pack[i] ^= 1 << bit
		}
	}
}

// TestDamagedBaseInStore unpacks a delta on an object of the store whose content does not match its hash.
func TestDamagedBaseInStore(t *testing.T) {
	s := newStore(t)
	h := blobHash("the base")
	path := filepath.Join(s, "objects", h.String()[:2], h.String()[2:])
	testenv.Must(0, os.MkdirAll(filepath.Dir(path), 0o755))(t)
	testenv.Must(0, os.WriteFile(path, deflated("blob 8\x00not base"), 0o644))(t)
	m := &packMaker{}
	m.ref(h, delta(8, 9, copied(0, 8), insertion("!")))
	testenv.MustFail(t, received(t, m.done()).Unpack(t.Context(), s, packDefaults(t), Progress{}), events.ClassCorrupt, events.Retryable)
}

// TestDeltaTrees receives trees of deltas with many contents in use at once, and longer chains than git makes.
func TestDeltaTrees(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	long := testenv.Form(4000, 20_000)
	text := func(i, size int) string { return fmt.Sprintf("%08d", i) + strings.Repeat("x", size-8) }
	change := func(i, size int) string {
		return delta(size, size, insertion(fmt.Sprintf("%08d", i)), copied(8, size-8))
	}
	for name, tc := range map[string]struct {
		depth, size int
		ref, comb   bool
	}{
		"a chain of OFS deltas":        {depth: long, size: 100},
		"a chain of REF deltas":        {depth: long, size: 100, ref: true},
		"a comb of OFS deltas":         {depth: 16, size: 1 << 20, comb: true},
		"a comb of REF deltas":         {depth: 16, size: 1 << 20, comb: true, ref: true},
		"a comb of large objects":      {depth: 5, size: 3 << 20, comb: true},
		"a chain of large REF objects": {depth: 5, size: 3 << 20, ref: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &packMaker{}
			last := m.blob(text(0, tc.size))
			want := []ID{blobHash(text(0, tc.size))}
			add := func(on int, base int64, i int) int64 {
				want = append(want, blobHash(text(i, tc.size)))
				if tc.ref {
					return m.ref(blobHash(text(on, tc.size)), change(i, tc.size))
				}
				return m.ofs(base, change(i, tc.size))
			}
			for i := range tc.depth {
				base := last
				if tc.comb {
					add(i, base, 1_000_000+i)
				}
				last = add(i, base, i+1)
				if tc.comb {
					add(i, base, 2_000_000+i)
				}
			}
			q := received(t, m.done())
			if err := q.Index(testenv.Context(t), packDefaults(t), Progress{}); err != nil {
				t.Fatal(err)
			}
			mustHold(t, q, want)
			if tc.depth < 100 { // git is slow on a long chain
				mustMatchGit(t, q.Dir)
			}
		})
	}
}

// mustHold checks that the objects are present.
func mustHold(t testing.TB, q Quarantine, want []ID) {
	t.Helper()
	objects := Open(q.Dir)
	defer objects.Close()
	for _, h := range want {
		if ok, err := objects.Has(h); !ok || err != nil {
			t.Errorf("%s is missing: %v", h, err)
		}
	}
}

// TestDuplicateObject receives a pack that contains a base twice, also when the store has it too.
func TestDuplicateObject(t *testing.T) {
	m := &packMaker{}
	m.blob("the base")
	m.ref(blobHash("the base"), delta(8, 9, copied(0, 8), insertion("!")))
	m.blob("the base")
	m.ref(blobHash("the base!"), delta(9, 8, copied(0, 8)))
	q := received(t, m.done())
	if err := q.Index(t.Context(), packDefaults(t), Progress{}); err != nil {
		t.Fatal(err)
	}
	mustReadAll(t, q.Dir) // git index-pack fails on this pack
	testenv.Must(gitserver.Git(t.Context(), q.Dir, "", "fsck", "--full", "--strict"))(t)
	s := newStore(t)
	if err := q.Release(s); err != nil {
		t.Fatal(err)
	}
	again := received(t, m.done())
	if err := again.Unpack(t.Context(), s, packDefaults(t), Progress{}); err != nil {
		t.Fatal(err)
	}
	mustHold(t, again, []ID{blobHash("the base"), blobHash("the base!")})
}

func TestEmptyPack(t *testing.T) {
	q := received(t, (&packMaker{}).done())
	if err := q.Index(t.Context(), packDefaults(t), Progress{}); err != nil {
		t.Fatal(err)
	}
	mustMatchGit(t, q.Dir)
	if err := received(t, (&packMaker{}).done()).Unpack(t.Context(), newStore(t), packDefaults(t), Progress{}); err != nil {
		t.Fatal(err)
	}
}

// TestIndexOffsetsAbove2GiB writes the index of a pack larger than 2 GiB, without the pack.
func TestIndexOffsetsAbove2GiB(t *testing.T) {
	r := &receiver{format: testFormat, entries: []packed{
		{hash: blobHash("a"), offset: 12}, {hash: blobHash("b"), offset: 1<<31 - 1},
		{hash: blobHash("c"), offset: 1 << 31}, {hash: blobHash("d"), offset: 5 << 40},
	}}
	path := filepath.Join(t.TempDir(), "pack-"+strings.Repeat("0", 2*packTrailer)+".idx")
	if err := r.writeIndex(path, make([]byte, packTrailer)); err != nil {
		t.Fatal(err)
	}
	index := testenv.Must(openPackIndex(path))(t)
	defer index.close()
	for _, e := range r.entries {
		if got, err := index.findOffset(e.hash); got != e.offset || err != nil {
			t.Errorf("%d: got %d, %v", e.offset, got, err)
		}
	}
	listed := testenv.Must(gitserver.Git(t.Context(), t.TempDir(), string(testenv.Must(os.ReadFile(path))(t)), "show-index", "--object-format="+testFormat.String()))(t)
	if !strings.Contains(listed, fmt.Sprintf("%d %s", int64(5<<40), blobHash("d"))) {
		t.Errorf("git lists\n%s", listed)
	}
}

// TestCancelWithinObject checks cancellation within one object, which may take long.
func TestCancelWithinObject(t *testing.T) {
	cause := errors.New("shutting down")
	const size = 16 << 20
	t.Run("inflating", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var in inflater
		testenv.Must(0, in.reset(ctx, bytes.NewReader(deflated(strings.Repeat("x", size))), size))(t)
		testenv.Must(in.Read(make([]byte, chunkSize)))(t)
		cancel(cause)
		if n, err := io.Copy(io.Discard, &in); !errors.Is(err, cause) || n > 1<<20 {
			t.Errorf("read %d bytes more: %v", n, err)
		}
	})
	t.Run("applying a delta", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		w := &resolver{r: &receiver{ctx: ctx}, spill: spill{dir: t.TempDir()}, patcher: newPatcher()}
		defer w.close()
		base := strings.NewReader(strings.Repeat("x", size))
		_, err := w.buffer(&content{kind: plumbing.BlobObject, size: size}, true, func(out io.Writer) error {
			cancel(cause)
			return w.copy(out, base, 0, size)
		})
		if !errors.Is(err, cause) || w.spill.end > 1<<20 {
			t.Errorf("wrote %d bytes: %v", w.spill.end, err)
		}
	})
	t.Run("writing a file", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := &receiver{ctx: ctx, q: Quarantine{Dir: t.TempDir()}}
		file := testenv.Must(r.createLoose(plumbing.BlobObject, size))(t)
		defer file.discard()
		cancel(cause)
		if _, err := file.Write(make([]byte, 1)); !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
	})
}
