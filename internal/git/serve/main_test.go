package serve

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const widgets = "acme/widgets"

// world is a forge with repositories of Git's own, which the handler serves as they lie.
type world struct {
	*testing.T
	forge   *gitserver.Server
	handler *Handler
	base    string

	mu     sync.Mutex
	served []Served
	change func(*Repo, *Pinned) // of each repository that is opened
}

func newWorld(t *testing.T, configure func(*Config)) *world {
	t.Helper()
	w := &world{T: t, forge: testenv.Must(gitserver.Start(t.TempDir()))(t)}
	t.Cleanup(w.forge.Close)
	cfg := Config{Source: w, Observe: w.observe, limits: limits{tempDir: t.TempDir()}}
	if configure != nil {
		configure(&cfg)
	}
	w.handler = testenv.Must(New(cfg))(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/git/", func(rw http.ResponseWriter, r *http.Request) {
		w.update(func() {}) // to see earlier updates: requests of other processes do not order memory
		w.handler.ServeHTTP(rw, r)
	})
	server := httptest.NewServer(mux)
	w.base = server.URL + "/git/"
	t.Cleanup(func() {
		server.Close()
		w.handler.Close()
	})
	return w
}

// update changes what later requests meet.
func (w *world) update(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// onOpen sets what changes each repository that is opened.
func (w *world) onOpen(change func(*Repo, *Pinned)) { w.update(func() { w.change = change }) }

func (w *world) observe(s Served) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served = append(w.served, s)
}

// packs returns what was served since the last call, as far as it had a pack.
func (w *world) packs() (packs []Served) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.served {
		if s.Bytes > 0 {
			packs = append(packs, s)
		}
	}
	w.served = nil
	return packs
}

func (w *world) url(repo string) string { return w.base + repo + ".git" }

// Open implements Source.
func (w *world) Open(ctx context.Context, r *http.Request) (*Repo, error) {
	name, ok := Path(r, "/git/")
	if _, err := os.Stat(w.forge.Dir(name)); !ok || err != nil {
		return nil, &Refusal{http.StatusNotFound, "not found"}
	}
	repo, store, err := readRepo(ctx, name, w.forge.Dir(name))
	if err == nil && w.change != nil {
		w.change(repo, store)
	}
	return repo, err
}

// readRepo reads a repository of Git's own.
func readRepo(ctx context.Context, name, dir string) (*Repo, *Pinned, error) {
	store := &Pinned{Dirs: []string{dir}, Shallow: object.ReadShallow(dir)}
	if store.Shallow != nil {
		store.Depth = 2
	}
	repo := &Repo{Name: name, Pin: func(context.Context, []object.ID) (*Pinned, error) { return store, nil }}
	format, err := gitserver.Git(ctx, dir, "", "rev-parse", "--show-object-format")
	if err != nil {
		return nil, nil, err
	}
	if format == "sha256" {
		repo.Format = object.SHA256
	}
	refs, err := gitserver.Git(ctx, dir, "", "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)")
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(refs) {
		fields := append(strings.Fields(line), "")
		repo.Refs = append(repo.Refs, Ref{fields[0], object.ParseID(fields[1]), object.ParseID(fields[2])})
	}
	slices.SortFunc(repo.Refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	head, err := os.ReadFile(filepath.Join(dir, "HEAD"))
	if err != nil {
		return nil, nil, err
	}
	repo.Head = strings.TrimPrefix(strings.TrimSpace(string(head)), "ref: ")
	repo.HeadID, _ = repo.ref(repo.Head)
	return repo, store, nil
}

// git runs git in dir, which must succeed.
func (w *world) git(dir string, args ...string) string {
	w.Helper()
	return testenv.Must(gitserver.Git(w.Context(), dir, "", args...))(w)
}

// protocols are the arguments of git for each version of the protocol. Git creates refs for the tags that come with a pack only if
// it keeps the pack.
var protocols = map[string][]string{
	"v2": {"-c", "fetch.unpackLimit=1", "-c", "protocol.version=2"},
	"v0": {"-c", "fetch.unpackLimit=1", "-c", "protocol.version=0"},
}

// contents describes all that a clone has: refs, reachable objects, and where its history ends.
func (w *world) contents(dir string) string {
	w.Helper()
	w.git(dir, "fsck", "--strict", "--connectivity-only")
	objects := strings.Split(w.git(dir, "rev-list", "--objects", "--all"), "\n")
	for i := range objects {
		objects[i], _, _ = strings.Cut(objects[i], " ")
	}
	slices.Sort(objects)
	return w.git(dir, "for-each-ref", "--format=%(refname) %(objectname)") + "\n" + strings.Join(objects, "\n")
}

// author makes a random history in a repository of the forge.
type author struct {
	*world
	random *rand.Rand
	repo   string
	files  map[string]map[string][]string // by branch and path: lines
	n      int
}

func newAuthor(w *world, repo, format string, seed uint64) *author {
	w.Helper()
	testenv.Must(0, w.forge.CreateEmptyAs(w.Context(), format, repo))(w)
	w.Logf("seed %d", seed)
	return &author{world: w, random: rand.New(rand.NewPCG(seed, 1)), repo: repo, files: map[string]map[string][]string{}}
}

func (a *author) pick(of int) bool { return a.random.IntN(of) == 0 }

func (a *author) path() string {
	return fmt.Sprintf("d%d/e%d/file-%d.txt", a.random.IntN(4), a.random.IntN(3), a.random.IntN(12))
}

// line returns a line of text that does not compress well.
func (a *author) line() string { return fmt.Sprintf("%x %x", a.random.Uint64(), a.random.Uint64()) }

// edit returns the next files of a branch, and writes the commands for fast-import.
func (a *author) edit(files map[string][]string, script *strings.Builder) {
	for range 1 + a.random.IntN(4) {
		path := a.path()
		lines, ok := files[path]
		switch {
		case ok && a.pick(8):
			delete(files, path)
			fmt.Fprintf(script, "D %s\n", path)
			continue
		case ok && a.pick(6):
			to := a.path()
			if to == path {
				continue
			}
			files[to] = lines
			delete(files, path)
			fmt.Fprintf(script, "R %s %s\n", path, to)
			continue
		case !ok:
			for range 1 + a.random.IntN(200) {
				lines = append(lines, a.line())
			}
		default:
			lines = slices.Clone(lines)
			lines[a.random.IntN(len(lines))] = a.line()
		}
		files[path] = lines
		content := strings.Join(lines, "\n")
		fmt.Fprintf(script, "M 100644 inline %s\ndata %d\n%s\n", path, len(content), content)
	}
}

// commits adds commits to branches, with merges, tags and rewritten branches.
func (a *author) commits(n int) {
	a.Helper()
	var script strings.Builder
	begun := map[string]bool{}
	tip := func(branch string) string { // fast-import knows the branches of this script by name
		if begun[branch] {
			return "refs/heads/" + branch
		}
		return "refs/heads/" + branch + "^0"
	}
	for range n {
		a.n++
		branch, base := "main", ""
		if a.pick(3) && a.files["main"] != nil {
			branch = fmt.Sprintf("side-%d", a.random.IntN(3))
		}
		if a.files[branch] != nil {
			base = branch
		}
		switch other := fmt.Sprintf("side-%d", a.random.IntN(3)); {
		case branch != "main" && (base == "" || a.pick(5)): // new, or rewritten by force
			base = "main"
		case branch == "main" && a.pick(12) && a.files[other] != nil:
			base = other
		}
		files, from := map[string][]string{}, ""
		if base != "" {
			maps.Copy(files, a.files[base])
			switch {
			case base == branch && !begun[branch]:
				from = "from " + tip(base) + "\n"
			case base != branch:
				fmt.Fprintf(&script, "reset refs/heads/%s\nfrom %s\n\n", branch, tip(base))
			}
		}
		message := fmt.Sprintf("Commit %d", a.n)
		fmt.Fprintf(&script, "commit refs/heads/%s\ncommitter A <a@b> %d +0000\ndata %d\n%s\n%s", branch, 1_700_000_000+a.n, len(message), message, from)
		if other := fmt.Sprintf("side-%d", a.random.IntN(3)); branch == "main" && a.pick(4) && a.files[other] != nil {
			fmt.Fprintf(&script, "merge %s\n", tip(other))
		}
		begun[branch] = true
		a.edit(files, &script)
		a.files[branch] = files
		script.WriteString("\n")
		if a.pick(6) {
			fmt.Fprintf(&script, "tag v%d\nfrom refs/heads/%s\ntagger A <a@b> %d +0000\ndata 3\ntag\n", a.n, branch, 1_700_000_000+a.n)
		}
	}
	script.WriteString("done\n")
	testenv.Must(a.forge.Git(a.Context(), a.repo, script.String(), "-c", "fastimport.unpackLimit=1000", "fast-import", "--quiet", "--force", "--done", "--date-format=raw"))(a)
}

// pack changes how the repository's objects are stored.
func (a *author) pack() {
	a.Helper()
	switch a.random.IntN(3) {
	case 0:
		a.git(a.forge.Dir(a.repo), "repack", "-d", "-q")
	case 1:
		a.git(a.forge.Dir(a.repo), "gc", "--quiet")
	}
}

// pkts returns lines in pkt-line format. Lines such as 0000 are special ones.
func pkts(lines ...string) string {
	var all strings.Builder
	for _, line := range lines {
		if len(line) == 4 && strings.HasPrefix(line, "000") {
			all.WriteString(line)
		} else {
			fmt.Fprintf(&all, "%04x%s\n", len(line)+5, line)
		}
		if format := os.Getenv("GIT_DEFAULT_HASH"); format != "" && strings.HasPrefix(line, "command=") {
			all.WriteString(pkts("object-format=" + format))
		}
	}
	return all.String()
}

// post sends a request to git-upload-pack and returns the answer.
func (w *world) post(protocol, body string) string {
	w.Helper()
	r := testenv.Must(http.NewRequestWithContext(w.Context(), http.MethodPost, w.url(widgets)+"/git-upload-pack", strings.NewReader(body)))(w)
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	r.Header.Set("Git-Protocol", protocol)
	answer := testenv.Must(http.DefaultClient.Do(r))(w)
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	return string(testenv.Must(io.ReadAll(answer.Body))(w))
}

var formats = map[string]object.Format{"sha1": object.SHA1, "sha256": object.SHA256}
